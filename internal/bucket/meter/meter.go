// Package meter counts the requests that a bucket gets, by kind and by what they
// are for. Tests pin these numbers, and a node reports them.
package meter

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// Op is a kind of request.
type Op string

// The kinds of requests. Get includes conditional reads that found nothing new.
const (
	Get     Op = "get"
	Create  Op = "create"
	Replace Op = "replace"
	Put     Op = "put"
	Delete  Op = "delete"
	List    Op = "list"
)

// Other is the purpose of a request whose context names none.
const Other = "other"

// Key is what one counter counts.
type Key struct {
	Purpose string
	Op      Op
}

// Counts are requests by purpose and kind.
type Counts map[Key]int64

type purposeKey struct{}

// With names the purpose of the requests that are made under the context. A
// purpose is a constant of the program, never made from input: each has its own
// counters for good.
func With(ctx context.Context, purpose string) context.Context {
	return context.WithValue(ctx, purposeKey{}, purpose)
}

// Tally counts the requests that are made under one context, whatever they are for.
type Tally struct{ n atomic.Int64 }

type tallyKey struct{}

// WithTally has the requests that are made under the context counted by t too.
func WithTally(ctx context.Context, t *Tally) context.Context {
	return context.WithValue(ctx, tallyKey{}, t)
}

// Total is how many requests there were.
func (t *Tally) Total() int64 { return t.n.Load() }

// Purpose is what the context's requests are for.
func Purpose(ctx context.Context) string {
	if p, ok := ctx.Value(purposeKey{}).(string); ok {
		return p
	}
	return Other
}

var _ bucket.Bucket = (*Bucket)(nil)

// Bucket counts what goes through it.
type Bucket struct {
	next bucket.Bucket

	answered atomic.Pointer[func(Op, Outcome, time.Duration)]

	mu     sync.Mutex
	counts Counts // guarded by mu
}

// Outcome is how a request ended.
type Outcome string

// The outcomes of a request: that it did what it should, and those of the bucket's
// errors. OutcomeOther is a driver's error that wraps none of them.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeNotFound    Outcome = "not_found"
	OutcomeNotModified Outcome = "not_modified"
	OutcomeRefused     Outcome = "refused"
	OutcomeUnavailable Outcome = "unavailable"
	OutcomeUnknown     Outcome = "unknown"
	OutcomeDenied      Outcome = "denied"
	OutcomeInvalid     Outcome = "invalid"
	OutcomeOther       Outcome = "other"
)

// OutcomeOf is the outcome that an error of a bucket says.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeOK
	}
	for _, k := range []struct {
		kind error
		name Outcome
	}{
		{bucket.ErrNotModified, OutcomeNotModified},
		{bucket.ErrNotFound, OutcomeNotFound},
		{bucket.ErrRefused, OutcomeRefused},
		{bucket.ErrUnavailable, OutcomeUnavailable},
		{bucket.ErrUnknown, OutcomeUnknown},
		{bucket.ErrDenied, OutcomeDenied},
		{bucket.ErrInvalid, OutcomeInvalid},
	} {
		if errors.Is(err, k.kind) {
			return k.name
		}
	}
	return OutcomeOther
}

// OnAnswer has f called at the end of every request that begins from now on, with
// how it ended and how long it took. f must be quick and safe for concurrent use.
func (b *Bucket) OnAnswer(f func(Op, Outcome, time.Duration)) { b.answered.Store(&f) }

// New wraps a bucket.
func New(next bucket.Bucket) *Bucket { return &Bucket{next: next, counts: Counts{}} }

// Counts is a copy of all counters.
func (b *Bucket) Counts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// count counts a request as it is sent; what it returns is to be told of its end.
func (b *Bucket) count(ctx context.Context, op Op) (done func(error)) {
	k := Key{Purpose: Purpose(ctx), Op: op}
	if t, ok := ctx.Value(tallyKey{}).(*Tally); ok {
		t.n.Add(1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts[k]++
	f := b.answered.Load()
	if f == nil {
		return func(error) {}
	}
	began := time.Now()
	return func(err error) { (*f)(op, OutcomeOf(err), time.Since(began)) }
}

// Since is what was counted after an earlier copy; counters that did not move
// are left out.
func (c Counts) Since(earlier Counts) Counts {
	d := Counts{}
	for k, n := range c {
		if n -= earlier[k]; n != 0 {
			d[k] = n
		}
	}
	return d
}

// Total is the sum over all purposes and the given kinds; over every kind when
// none is given.
func (c Counts) Total(ops ...Op) int64 {
	var n int64
	for k, v := range c {
		if len(ops) == 0 {
			n += v
			continue
		}
		for _, op := range ops {
			if k.Op == op {
				n += v
			}
		}
	}
	return n
}

// For are the counters of one purpose.
func (c Counts) For(purpose string) Counts {
	d := Counts{}
	for k, n := range c {
		if k.Purpose == purpose {
			d[k] = n
		}
	}
	return d
}

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string) (*bucket.Object, error) {
	done := b.count(ctx, Get)
	v, err := b.next.Get(ctx, key)
	done(err)
	return v, err
}

// GetIfChanged implements bucket.Bucket.
func (b *Bucket) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	done := b.count(ctx, Get)
	v, err := b.next.GetIfChanged(ctx, key, etag)
	done(err)
	return v, err
}

// Create implements bucket.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, body []byte) (string, error) {
	done := b.count(ctx, Create)
	v, err := b.next.Create(ctx, key, body)
	done(err)
	return v, err
}

// Replace implements bucket.Bucket.
func (b *Bucket) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	done := b.count(ctx, Replace)
	v, err := b.next.Replace(ctx, key, etag, body)
	done(err)
	return v, err
}

// Put implements bucket.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, body []byte) (string, error) {
	done := b.count(ctx, Put)
	v, err := b.next.Put(ctx, key, body)
	done(err)
	return v, err
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	done := b.count(ctx, Delete)
	err := b.next.Delete(ctx, key)
	done(err)
	return err
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	done := b.count(ctx, List)
	v, err := b.next.List(ctx, prefix, o)
	done(err)
	return v, err
}
