package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/mistake"
)

// Record is a document of the vocabulary: each begins with a header.
type Record[T any] interface {
	*T
	GetHeader() *scafo.Header
}

// Doc is a document as it was read, or as it was written.
type Doc[T any] struct {
	Key  string
	ETag string // empty when there is no object; a tombstone has one
	// Exists is false when there is no object, and when it is a tombstone.
	Exists bool
	Value  T
	// Modified and Date are the store's; see bucket.Object. Both are zero on what
	// was written just now.
	Modified time.Time
	Date     time.Time

	raw []byte // as it stands in the bucket
}

// Age is how old the document is by the store's own clock; ok is false where the
// store did not say.
func (d Doc[T]) Age() (age time.Duration, ok bool) {
	if d.Date.IsZero() || d.Modified.IsZero() {
		return 0, false
	}
	return max(d.Date.Sub(d.Modified), 0), true
}

func docOf[T any, P Record[T]](o *bucket.Object) (Doc[T], error) {
	d := Doc[T]{Key: o.Key, ETag: o.ETag, Modified: o.Modified, Date: o.Date, raw: o.Body}
	gone, err := decode(o.Key, o.Body, &d.Value)
	if err != nil {
		return Doc[T]{Key: o.Key, ETag: o.ETag}, unreadable(err)
	}
	d.Exists = !gone
	return d, nil
}

// Load reads a document. One that is absent or removed is no error: Exists is
// false then.
func Load[T any, P Record[T]](ctx context.Context, r *Registry, key string) (Doc[T], error) {
	o, err := get(ctx, r, key, "")
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return Doc[T]{Key: key}, nil
	case err != nil:
		return Doc[T]{Key: key}, err
	}
	return docOf[T, P](o)
}

// Reload reads a document again; it costs the store no body while the document
// is as the caller has it, and the same one is returned then.
func Reload[T any, P Record[T]](ctx context.Context, r *Registry, d Doc[T]) (Doc[T], error) {
	o, err := get(ctx, r, d.Key, d.ETag)
	switch {
	case errors.Is(err, bucket.ErrNotModified):
		return d, nil
	case errors.Is(err, bucket.ErrNotFound):
		return Doc[T]{Key: d.Key}, nil
	case err != nil:
		return d, err
	}
	return docOf[T, P](o)
}

// get reads an object, and tries again a few times when the store is away. The
// errors that it returns are a missing or an unchanged object, plainly, and all
// others as store-unavailable.
func get(ctx context.Context, r *Registry, key, etag string) (*bucket.Object, error) {
	for try := 1; ; try++ {
		o, err := r.b.GetIfChanged(ctx, key, etag)
		switch {
		case err == nil:
			o.Key = key
			return o, nil
		case errors.Is(err, bucket.ErrNotFound), errors.Is(err, bucket.ErrNotModified):
			return nil, err
		case ctx.Err() != nil || try == readTries || permanent(err):
			return nil, unavailable(err, "reading "+key)
		}
		if err := pause(ctx, r.jitter(backoff(try))); err != nil {
			return nil, unavailable(err, "reading "+key)
		}
	}
}

// permanent says that no second try will do better.
func permanent(err error) bool {
	return errors.Is(err, bucket.ErrDenied) || errors.Is(err, bucket.ErrInvalid)
}

// How often a request is tried again, and how long the pauses grow.
const (
	readTries     = 3
	writeTries    = 5  // of writes that did not happen
	conflictTries = 64 // of writes that met another's
	firstPause    = 40 * time.Millisecond
	longestPause  = time.Second
)

// backoff is the pause after a try, before jitter.
func backoff(try int) time.Duration {
	d := firstPause
	for range min(try, 10) - 1 {
		d *= 2
	}
	return min(d, longestPause)
}

// Swap writes the document once over the one that was read: it creates it when
// there was no object, and replaces what has the document's ETag otherwise. The
// error wraps bucket.ErrRefused when the object is not any more what was read,
// and is store-unavailable when the store failed; the chain has bucket.ErrUnknown
// when even reading back could not tell whether the write happened.
func Swap[T any, P Record[T]](ctx context.Context, r *Registry, d Doc[T]) (Doc[T], error) {
	body, err := seal[T, P](r, &d)
	if err != nil {
		return d, err
	}
	etag, err := r.put(ctx, d.Key, d.ETag, body)
	if errors.Is(err, bucket.ErrUnknown) {
		return settle[T, P](ctx, r, d, err)
	}
	if err != nil {
		return d, err
	}
	return Doc[T]{Key: d.Key, ETag: etag, Exists: true, Value: d.Value, raw: body}, nil
}

// seal gives the value a new nonce and turns it into bytes.
func seal[T any, P Record[T]](r *Registry, d *Doc[T]) ([]byte, error) {
	h := P(&d.Value).GetHeader()
	h.V, h.Write = scafo.FormatVersion, r.Nonce(nonceBytes)
	earlier := d.raw
	if !d.Exists {
		earlier = nil
	}
	body, err := encode(d.Value, earlier)
	if err != nil {
		var e *scafo.Error
		if errors.As(err, &e) {
			return nil, e
		}
		return nil, scafo.Wrap(err, scafo.CodeInternal, "%s cannot be written", d.Key)
	}
	return body, nil
}

const nonceBytes = 12

// settle tells by reading back whether a write happened whose answer was lost.
func settle[T any, P Record[T]](ctx context.Context, r *Registry, sent Doc[T], cause error) (Doc[T], error) {
	if mistake.Made(mistake.ReadBackSkipped) {
		sent.Exists = true
		return sent, nil
	}
	back, err := Load[T, P](ctx, r, sent.Key)
	if err != nil {
		return sent, unavailable(fmt.Errorf("%w; reading back: %w", cause, err), "writing "+sent.Key)
	}
	if back.Exists && nonceOf[T, P](&back) == nonceOf[T, P](&sent) {
		return back, nil
	}
	if back.ETag == sent.ETag {
		// It has not happened, and may still: whoever tries again competes with it.
		return sent, unavailable(cause, "writing "+sent.Key)
	}
	return sent, fmt.Errorf("%w: %s changed", bucket.ErrRefused, sent.Key)
}

func nonceOf[T any, P Record[T]](d *Doc[T]) string { return P(&d.Value).GetHeader().Write }

// put is one conditional write. A refusal and an unknown outcome are returned
// plainly, all other failures as store-unavailable.
func (r *Registry) put(ctx context.Context, key, etag string, body []byte) (string, error) {
	var err error
	if etag == "" {
		etag, err = r.b.Create(ctx, key, body)
	} else {
		etag, err = r.b.Replace(ctx, key, etag, body)
	}
	if errors.Is(err, bucket.ErrUnknown) && mistake.Made(mistake.UnknownRetried) {
		etag, err = r.b.Put(ctx, key, body)
	}
	switch {
	case err == nil:
		return etag, nil
	case errors.Is(err, bucket.ErrRefused), errors.Is(err, bucket.ErrUnknown):
		return "", err
	}
	return "", unavailable(err, "writing "+key)
}

// Update changes a document: it reads it, calls change, and writes it over what
// it read, again from the start (with growing, random pauses) as often as others
// were faster. The change sees in Exists whether there is a document, and a zero
// value when there is none; it may be called several times. An error of its own
// ends the update; ErrKeep ends it without a write and without an error.
//
// A write whose answer was lost is settled by reading back. When it happened and
// somebody wrote over it before it could be read back, change is applied to what
// is there then: a change must say what shall be, or bear to be applied twice.
func Update[T any, P Record[T]](ctx context.Context, r *Registry, key string, change func(d *Doc[T]) error) (Doc[T], error) {
	return updateFrom[T, P](ctx, r, nil, key, change)
}

// updateFrom is Update that begins with a document which the caller has read, or
// written, before; nil reads it first.
func updateFrom[T any, P Record[T]](ctx context.Context, r *Registry, base *Doc[T], key string, change func(d *Doc[T]) error) (_ Doc[T], err error) {
	l := loop{r: r, key: key}
	defer func() { l.doubt(ctx, err) }()
	for {
		var d Doc[T]
		if base != nil {
			d, base = *base, nil
		} else {
			var err error
			if d, err = Load[T, P](ctx, r, key); err != nil {
				return d, err
			}
		}
		if d.Exists && l.mine(nonceOf[T, P](&d)) {
			return d, nil // a write that was given up for lost
		}
		if l.last != nil {
			return d, l.last
		}
		read := d
		if err := change(&d); err != nil {
			if errors.Is(err, ErrKeep) {
				return read, nil
			}
			return read, err
		}
		d.Key, d.ETag, d.Exists, d.raw = read.Key, read.ETag, read.Exists, read.raw
		body, err := seal[T, P](r, &d)
		if err != nil {
			return read, err
		}
		etag, err := r.put(ctx, key, d.ETag, body)
		if err == nil || errors.Is(err, bucket.ErrUnknown) && mistake.Made(mistake.ReadBackSkipped) {
			return Doc[T]{Key: key, ETag: etag, Exists: true, Value: d.Value, raw: body}, nil
		}
		if err := l.again(ctx, err, nonceOf[T, P](&d)); err != nil {
			return read, err
		}
	}
}

// fresh is the base of an update that expects nothing to be there: the first write
// creates, and only a refused one reads.
func fresh[T any](key string) *Doc[T] { return &Doc[T]{Key: key} }

// loop counts the tries of one compare-and-swap.
type loop struct {
	r         *Registry
	key       string
	failed    int      // tries that did not happen, or whose answer was lost
	conflicts int      // tries that met another's write
	lost      []string // nonces of the writes whose answers were lost
	last      error    // set when only reading back is left to do
}

// mine reports whether a nonce is that of a write whose answer was lost.
func (l *loop) mine(nonce string) bool { return slices.Contains(l.lost, nonce) }

// doubt announces a document that was given up with a write whose answer never came:
// whether it is in force, nobody knows, and nobody else would tell of it. Who hears of
// it reads the document, and a write that did not happen costs no more than that. The
// writer reads it too: what it decided by the document as it was may not fit any more.
func (l *loop) doubt(ctx context.Context, err error) {
	if err == nil || len(l.lost) == 0 || !announces(l.key) {
		return
	}
	l.r.announceSoon(ctx, l.key)
	l.r.tell.mu.Lock()
	heard := l.r.tell.heard
	l.r.tell.mu.Unlock()
	if heard != nil {
		heard(ctx, []string{l.key})
	}
}

// again says whether, and waits until, another try may be made after a write
// failed; what is left of the failure is returned when not.
func (l *loop) again(ctx context.Context, err error, nonce string) error {
	what := "writing " + l.key
	wait := time.Duration(0)
	switch {
	case errors.Is(err, bucket.ErrRefused):
		l.conflicts++
		if l.conflicts == conflictTries {
			return unavailable(err, what)
		}
		// The first loser tries again at once: somebody else has just finished.
		if l.conflicts > 1 {
			wait = l.r.jitter(backoff(l.conflicts - 1))
		}
	case errors.Is(err, bucket.ErrUnknown):
		l.lost = append(l.lost, nonce)
		if l.failed++; l.failed == writeTries {
			l.last = unavailable(err, what)
		}
	default:
		if l.failed++; l.failed == writeTries || permanent(err) {
			return unavailable(err, what)
		}
		wait = l.r.jitter(backoff(l.failed))
	}
	if wait > 0 {
		if err := pause(ctx, wait); err != nil {
			return unavailable(err, what)
		}
	}
	if ctx.Err() != nil {
		return unavailable(fmt.Errorf("%w: %w", ctx.Err(), err), what)
	}
	return nil
}

// Remove replaces a document by a tombstone, which reads as absent. check, when
// given, sees what would be removed and may refuse. It reports whether there was
// anything to remove.
func Remove[T any, P Record[T]](ctx context.Context, r *Registry, key string, check func(T) error) (_ bool, err error) {
	l := loop{r: r, key: key}
	defer func() { l.doubt(ctx, err) }()
	for {
		o, err := get(ctx, r, key, "")
		if errors.Is(err, bucket.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(l.lost) > 0 {
			if h, err := headerOf(o.Body); err == nil && l.mine(h.Write) {
				return true, nil
			}
		}
		if l.last != nil {
			return false, l.last
		}
		d, err := docOf[T, P](o)
		if err != nil {
			return false, err
		}
		if !d.Exists {
			return false, nil
		}
		if check != nil {
			if err := check(d.Value); err != nil {
				if errors.Is(err, ErrKeep) {
					return false, nil
				}
				return false, err
			}
		}
		t := tombstone{Header: scafo.Header{V: scafo.FormatVersion, Write: r.Nonce(nonceBytes)}, Removed: r.Now(), Gone: true}
		body, err := marshal(t)
		if err != nil {
			return false, scafo.Wrap(err, scafo.CodeInternal, "%s cannot be removed", key)
		}
		if _, err = r.put(ctx, key, d.ETag, body); err == nil {
			return true, nil
		}
		if err := l.again(ctx, err, t.Write); err != nil {
			return false, err
		}
	}
}

// headerOf reads the header alone, of a tombstone too.
func headerOf(body []byte) (scafo.Header, error) {
	doc, err := parse("", body)
	if err != nil {
		return scafo.Header{}, err
	}
	w, _ := doc["write"].(string)
	return scafo.Header{V: scafo.FormatVersion, Write: w}, nil
}
