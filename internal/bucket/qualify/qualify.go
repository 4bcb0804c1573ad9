// Package qualify proves, before a fleet trusts a store, that the store honours
// conditional writes. All safety of the registry rests on them, and there are
// stores that take the conditions and ignore them.
package qualify

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// Check names one property that was tested.
type Check string

// The checks, in their order.
const (
	CheckWrite         Check = "write"
	CheckCreateOnce    Check = "create-once"
	CheckReadBack      Check = "read-back"
	CheckReplace       Check = "replace"
	CheckReplaceStale  Check = "replace-stale"
	CheckReplaceAbsent Check = "replace-absent"
	CheckList          Check = "list"
	CheckCreateRace    Check = "create-race"
	CheckReplaceRace   Check = "replace-race"
)

// nonceBytes is the length of what the object of a proof is named by, in hex.
const nonceBytes = 8

// racers is how many writes meet in a race.
const racers = 5

// Error says which check the store failed.
type Error struct {
	Check  Check
	Detail string
}

func (e *Error) Error() string {
	return fmt.Sprintf("the store does not qualify (%s): %s", e.Check, e.Detail)
}

// leftAfter is how much older than a proof's own object another one is whose prover has
// died: a proof takes seconds, and one that takes an hour fails for want of its object.
const leftAfter = time.Hour

// Prove makes a few conditional writes under the prefix, which is for nothing else, and
// cleans up after itself, and after provers that were killed over an hour ago, by the
// store's own times. It returns an *Error naming the failed check when the store does
// not honour them, and the bucket's own error when the store could not be asked
// (away, or refusing the credentials): try again then, or fix those.
func Prove(ctx context.Context, b bucket.Bucket, prefix string) error {
	var nonce [nonceBytes]byte
	_, _ = rand.Read(nonce[:]) // never fails: crypto/rand ends the process instead
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	p := &prover{b: b, key: fmt.Sprintf("%s%x", prefix, nonce)}
	err := p.run(ctx)
	if err == nil {
		p.sweep(ctx, prefix)
	}
	// A write whose answer was lost may have happened: try to clean up in any case.
	if derr := b.Delete(ctx, p.key); err == nil && derr != nil {
		return fmt.Errorf("the store's test object %s stays: %w", p.key, derr)
	}
	return err
}

type prover struct {
	b   bucket.Bucket
	key string
	at  time.Time // of the object, by the store; zero where it tells no times
}

// sweep deletes what provers have left that were killed. That it may fail is no flaw of
// the store: the next proof sweeps again.
func (p *prover) sweep(ctx context.Context, prefix string) {
	if p.at.IsZero() {
		return
	}
	page, err := p.b.List(ctx, prefix, bucket.ListOptions{})
	if err != nil {
		return
	}
	for _, o := range page.Objects {
		nonce, err := hex.DecodeString(strings.TrimPrefix(o.Key, prefix))
		if err == nil && len(nonce) == nonceBytes && p.at.Sub(o.Modified) > leftAfter {
			_ = p.b.Delete(ctx, o.Key) // the next proof tries again
		}
	}
}

func (p *prover) run(ctx context.Context) error {
	first, err := p.createRace(ctx)
	if err != nil {
		return err
	}
	if err := p.refused(CheckCreateOnce, "a create of an existing object was not refused (If-None-Match: * is ignored)", func() error {
		_, err := p.b.Create(ctx, p.key, []byte("second"))
		return err
	}); err != nil {
		return err
	}
	o, err := p.b.Get(ctx, p.key)
	if err != nil {
		return err
	}
	if o.ETag != first {
		return &Error{CheckReadBack, fmt.Sprintf("a read answers ETag %s, the write answered %s", o.ETag, first)}
	}
	second, err := p.b.Replace(ctx, p.key, first, []byte("replaced"))
	if err != nil {
		return p.unexpected(CheckReplace, "a replace with the current ETag was refused", err)
	}
	if err := p.refused(CheckReplaceStale, "a replace with a stale ETag was not refused (If-Match is ignored)", func() error {
		_, err := p.b.Replace(ctx, p.key, first, []byte("stale"))
		return err
	}); err != nil {
		return err
	}
	if err := p.intact(ctx, second); err != nil {
		return err
	}
	if err := p.replaceRace(ctx, second); err != nil {
		return err
	}
	if err := p.list(ctx); err != nil {
		return err
	}
	if err := p.b.Delete(ctx, p.key); err != nil {
		return err
	}
	return p.refused(CheckReplaceAbsent, "a replace of a missing object was not refused (If-Match creates)", func() error {
		_, err := p.b.Replace(ctx, p.key, second, []byte("absent"))
		return err
	})
}

// refused checks that the write is refused.
func (p *prover) refused(check Check, detail string, write func() error) error {
	err := write()
	switch {
	case errors.Is(err, bucket.ErrRefused):
		return nil
	case err == nil:
		return &Error{check, detail}
	}
	return p.unexpected(check, "it does not know this kind of request", err)
}

// unexpected tells a store that cannot do it from one that is away.
func (p *prover) unexpected(check Check, detail string, err error) error {
	if errors.Is(err, bucket.ErrRefused) || errors.Is(err, bucket.ErrInvalid) {
		return &Error{check, fmt.Sprintf("%s: %v", detail, err)}
	}
	return err
}

// intact checks that what was refused was not written.
func (p *prover) intact(ctx context.Context, etag string) error {
	o, err := p.b.Get(ctx, p.key)
	if err != nil {
		return err
	}
	if string(o.Body) != "replaced" || o.ETag != etag {
		return &Error{CheckReplaceStale, "a replace with a stale ETag was refused and still written"}
	}
	return nil
}

func (p *prover) list(ctx context.Context) error {
	page, err := p.b.List(ctx, p.key, bucket.ListOptions{})
	if err != nil {
		return err
	}
	if len(page.Objects) != 1 || page.Objects[0].Key != p.key {
		return &Error{CheckList, "a listing right after a write does not show it"}
	}
	p.at = page.Objects[0].Modified
	return nil
}

func (p *prover) createRace(ctx context.Context) (string, error) {
	tags, err := race(func(i int) (string, error) {
		return p.b.Create(ctx, p.key, fmt.Appendf(nil, "created by %d", i))
	})
	if err != nil {
		return "", p.unexpected(CheckWrite, "an object could not be created", err)
	}
	if len(tags) != 1 {
		return "", &Error{CheckCreateRace, fmt.Sprintf("%d of %d creates of one object at once succeeded, want 1", len(tags), racers)}
	}
	return tags[0], nil
}

func (p *prover) replaceRace(ctx context.Context, etag string) error {
	tags, err := race(func(i int) (string, error) {
		return p.b.Replace(ctx, p.key, etag, fmt.Appendf(nil, "replaced by %d", i))
	})
	if err != nil {
		return p.unexpected(CheckReplace, "an object could not be replaced", err)
	}
	if len(tags) != 1 {
		return &Error{CheckReplaceRace, fmt.Sprintf("%d of %d replaces of one version at once succeeded, want 1", len(tags), racers)}
	}
	return nil
}

// race runs the writes at once and returns the ETags of those that succeeded, or
// the first error that is no refusal.
func race(write func(i int) (string, error)) ([]string, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		tags  []string // guarded by mu
		first error    // guarded by mu
	)
	for i := range racers {
		wg.Go(func() {
			etag, err := write(i)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				tags = append(tags, etag)
			case first == nil && !errors.Is(err, bucket.ErrRefused):
				first = err
			}
		})
	}
	wg.Wait()
	return tags, first
}
