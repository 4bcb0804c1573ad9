package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// weather is what a machine's way to the store is like.
type weather struct {
	cut       bool    // nothing gets through
	slow      int     // how many times slower than usual; 0 is as usual
	throttled float64 // the probabilities of what happens to a call, whose sum is at most 1
	lost      float64 // the request is lost
	deaf      float64 // the answer is lost
	refused   float64 // 409 though the condition holds, as stores may when writes overlap
	late      float64 // the request arrives long after its sender has given up
	twice     float64 // a delete arrives again, long after
}

const (
	quickest, slowest = time.Millisecond, 40 * time.Millisecond // of one way
	// latest is how late a request may arrive whose sender has given up.
	latest = 4 * time.Minute
	// giveUp is how long a sender waits for an answer that does not come.
	giveUp = 20 * time.Second
)

// wire is a daemon's way to the store. A request that is under way when its sender
// gives up, or dies, arrives all the same.
type wire struct {
	l *life
}

var _ bucket.Bucket = wire{}

var errLost = errors.New("the answer is lost")

// roundTrip is one call: the way there, the store, the way back.
func roundTrip[T any](ctx context.Context, l *life, op, key string, apply func(w *world, l *life) (T, error)) (T, error) {
	var zero T
	write := op != "get" && op != "list"
	fail := func(sent bool, cause error) (T, error) {
		kind := bucket.ErrUnavailable
		if sent && write {
			kind = bucket.ErrUnknown
		}
		return zero, &bucket.Error{Op: op, Key: key, Kind: kind, Err: cause}
	}
	if err := bucket.CheckKey(key); err != nil && op != "list" {
		return zero, &bucket.Error{Op: op, Key: key, Kind: bucket.ErrInvalid, Err: err}
	}
	w := l.m.w
	w.sprung(l, op, key)
	if !l.awake(ctx, op+key) {
		return fail(false, errLost)
	}
	d := l.dice(op, key)
	wx := w.weatherOf(l.m)
	if *callsFlag {
		w.trace.say(l.name, "%s %s is sent", op, key)
	}
	way := func() time.Duration { return d.between(quickest, slowest) * time.Duration(1+wx.slow) }
	there, back, fate := way(), way(), d.Float64()
	strikes := func(p float64) bool {
		hit := fate >= 0 && fate < p
		fate -= p
		return hit
	}
	switch {
	case wx.cut:
		if !l.sleep(ctx, d.between(time.Millisecond, giveUp/4)) {
			return fail(false, ctx.Err())
		}
		return fail(false, errors.New("no way to the store"))
	case strikes(wx.throttled):
		l.sleep(ctx, there+back)
		return fail(false, errors.New("503 slow down"))
	case strikes(wx.lost):
		l.sleep(ctx, d.between(quickest, giveUp))
		w.trace.say(l.name, "%s %s: the request is lost", op, key)
		return fail(true, errLost)
	case write && op != "delete" && op != "put" && strikes(wx.refused):
		l.sleep(ctx, there+back)
		w.trace.say(l.name, "%s %s: refused though it holds", op, key)
		return zero, &bucket.Error{Op: op, Key: key, Kind: bucket.ErrRefused, Err: errors.New("409 conflict")}
	case write && !strings.HasSuffix(key, pointerKey) && strikes(wx.late):
		// The pointer is the runtime's own, and has nothing that tells one write of it from
		// another: what its deploy command sent must not arrive after that has ended.
		later(d.between(time.Second, latest), func() {
			_, err := apply(w, l)
			if err == nil {
				w.model.astray(key)
			}
			w.trace.say(l.name, "%s %s arrives late: %v", op, key, outcome(err))
		})
		w.trace.say(l.name, "%s %s will be late", op, key)
		l.sleep(ctx, d.between(time.Second, giveUp))
		return fail(true, errLost)
	}
	sent := time.Now()
	if !l.sleep(ctx, there) {
		later(max(0, there-time.Since(sent)), func() {
			if _, err := apply(w, l); err == nil {
				w.model.astray(key)
			}
		})
		return fail(true, errors.Join(ctx.Err(), errLost))
	}
	v, err := apply(w, l)
	if op == "delete" && d.chance(wx.twice) {
		later(d.between(time.Second, latest), func() {
			_, err := apply(w, l)
			w.trace.say(l.name, "delete %s arrives again: %v", key, outcome(err))
		})
	}
	if strikes(wx.deaf) {
		w.trace.say(l.name, "%s %s: %v, and the answer is lost", op, key, outcome(err))
		l.sleep(ctx, d.between(quickest, giveUp))
		return fail(true, errLost)
	}
	if !l.sleep(ctx, back) || !l.awake(ctx, op+key) {
		return fail(true, errors.Join(ctx.Err(), errLost))
	}
	return v, err
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "applied"
	case errors.Is(err, bucket.ErrRefused):
		return "refused"
	}
	return fmt.Sprint(err)
}

// later does something after a while, whoever asked for it may be gone by then.
func later(d time.Duration, f func()) { time.AfterFunc(d, f) }

func (c wire) Get(ctx context.Context, key string) (*bucket.Object, error) {
	return c.GetIfChanged(ctx, key, "")
}

func (c wire) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	return roundTrip(ctx, c.l, "get", key, func(w *world, _ *life) (*bucket.Object, error) {
		return w.store.GetIfChanged(context.Background(), key, etag)
	})
}

func (c wire) Create(ctx context.Context, key string, body []byte) (string, error) {
	return roundTrip(ctx, c.l, "create", key, func(w *world, l *life) (string, error) {
		return w.change(l, "create", key, body, func() (string, error) { return w.store.Create(context.Background(), key, body) })
	})
}

func (c wire) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	return roundTrip(ctx, c.l, "replace", key, func(w *world, l *life) (string, error) {
		return w.change(l, "replace", key, body, func() (string, error) { return w.store.Replace(context.Background(), key, etag, body) })
	})
}

func (c wire) Put(ctx context.Context, key string, body []byte) (string, error) {
	return roundTrip(ctx, c.l, "put", key, func(w *world, l *life) (string, error) {
		return w.change(l, "put", key, body, func() (string, error) { return w.store.Put(context.Background(), key, body) })
	})
}

func (c wire) Delete(ctx context.Context, key string) error {
	_, err := roundTrip(ctx, c.l, "delete", key, func(w *world, l *life) (string, error) {
		return w.change(l, "delete", key, nil, func() (string, error) { return "", w.store.Delete(context.Background(), key) })
	})
	return err
}

func (c wire) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	return roundTrip(ctx, c.l, "list", prefix, func(w *world, _ *life) (bucket.Page, error) {
		return w.store.List(context.Background(), prefix, o)
	})
}
