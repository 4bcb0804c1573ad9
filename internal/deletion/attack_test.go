package deletion_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

const (
	firstHex  = "1111111111111111"
	secondHex = "2222222222222222"
)

// untouched checks that a life is, object by object, what it was.
func untouched(t *testing.T, when string, b *memory.Store, app scafo.Application, before map[string]string) {
	t.Helper()
	after := belongs(b, app, secondHex)
	if maps.Equal(before, after) {
		return
	}
	for k, v := range before {
		if after[k] != v {
			t.Errorf("%s: %s of the next life became %q", when, k, after[k])
		}
	}
	for k := range after {
		if _, ok := before[k]; !ok {
			t.Errorf("%s: %s came to the next life", when, k)
		}
	}
}

// A coordinator is stopped at any of its requests, before or after the store has done
// it. Another one takes over and finishes; the name lives again. Then the first one
// goes on, and still believes that it coordinates.
func TestAPausedDeleterReachesNobody(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		for k, more := 0, true; more && !t.Failed(); k++ {
			synctest.Test(t, func(t *testing.T) { more = pausedAt(t, when, k) })
			if k > 200 {
				t.Fatal("a deletion has no end")
			}
		}
	}
}

func pausedAt(t *testing.T, when string, k int) (more bool) {
	b := memory.New()
	store := fault.New(b)
	_, _ = live(t, b, "shop", firstHex)
	put(t, b, registry.RuntimePrefix("shop", oldUID)+"objects/x")
	first := newParty(t, store, holding(1))
	synctest.Wait()
	freeze := make(chan struct{})
	rule := fault.Rule{Skip: k, Times: 1}
	wait := func(context.Context, fault.Call) { <-freeze }
	if when == "before" {
		rule.Before = wait
	} else {
		rule.After = wait
	}
	armed := store.Inject(rule)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = first.delete(force("shop"))
	}()
	synctest.Wait()
	name := fmt.Sprintf("%s request %d", when, k)
	second := newParty(t, b, holding(2))
	first.lease.set(func(l *fakeLease) { l.others, l.held = scafo.Lease{Node: "b", Fence: 2}, true })
	synctest.Wait()
	if _, err := second.delete(force("shop")); err != nil && scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("%s: the second coordinator: %v", name, err)
	}
	app, _ := live(t, b, "shop", secondHex)
	before := belongs(b, app, secondHex)
	close(freeze)
	<-done
	synctest.Wait()
	untouched(t, name, b, app, before)
	time.Sleep(2 * time.Hour) // every late look
	untouched(t, name+", later", b, app, before)
	check.Bucket(t, b)
	return armed.Hits() > 0
}

// lateStore loses the answers to a part of its requests, and carries them out when it
// is told to: minutes later, in an order of its own.
type lateStore struct {
	bucket.Bucket
	mu   sync.Mutex
	late []func() // guarded by mu
	lose func(op, key string) bool
}

func (s *lateStore) delayed(op, key string, do func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lose == nil || !s.lose(op, key) {
		return nil
	}
	s.late = append(s.late, do)
	return &bucket.Error{Op: op, Key: key, Kind: bucket.ErrUnknown}
}

func (s *lateStore) Delete(ctx context.Context, key string) error {
	if err := s.delayed("delete", key, func() { _ = s.Bucket.Delete(context.Background(), key) }); err != nil {
		return err
	}
	return s.Bucket.Delete(ctx, key)
}

func (s *lateStore) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	if err := s.delayed("replace", key, func() { _, _ = s.Bucket.Replace(context.Background(), key, etag, body) }); err != nil {
		return "", err
	}
	return s.Bucket.Replace(ctx, key, etag, body)
}

func (s *lateStore) land() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.late) - 1; i >= 0; i-- {
		s.late[i]()
	}
	n := len(s.late)
	s.late, s.lose = nil, nil
	return n
}

// The store holds back every first try of a delete and of a conditional write, and
// lets all of them land when the name has lived again for minutes.
func TestDelayedRequestsReachNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := &lateStore{Bucket: b}
		p := newParty(t, store, holding(1))
		synctest.Wait()
		live(t, b, "shop", firstHex)
		seen := map[string]bool{}
		store.lose = func(op, key string) bool {
			tried := seen[op+key]
			seen[op+key] = true
			return !tried
		}
		if _, err := p.delete(force("shop")); err != nil {
			t.Fatal(err)
		}
		store.mu.Lock()
		store.lose = nil
		store.mu.Unlock()
		nothingOf(t, b, "shop")
		app, _ := live(t, b, "shop", secondHex)
		before := belongs(b, app, secondHex)
		time.Sleep(5 * time.Minute)
		if n := store.land(); n < 10 {
			t.Errorf("only %d requests were held back", n)
		}
		untouched(t, "after the delayed requests", b, app, before)
		check.Bucket(t, b)
	})
}

// A runtime that nobody reached goes on writing beneath its uid: while its application
// is deleted, after that, and while the next one lives. The deletion comes to an end
// all the same, the next life has none of it, and what was written late goes.
func TestAForgottenRuntimeReachesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		p := newParty(t, b, holding(1))
		synctest.Wait()
		app, _ := live(t, b, "shop", firstHex)
		prefix := registry.RuntimePrefix("shop", app.UID)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		store := fault.New(b) // its own way to the store
		write := func(n int) { put(t, store, fmt.Sprintf("%sobjects/late/%d", prefix, n)) }
		go func() {
			defer close(ended)
			for n := 0; ctx.Err() == nil; n++ {
				write(n)
				time.Sleep(time.Minute)
			}
		}()
		p.fleet.quiet = func(string, string) []string {
			time.Sleep(20 * time.Second)
			return []string{"b"}
		}
		if _, err := p.delete(force("shop")); err != nil {
			t.Fatal(err)
		}
		next, _ := live(t, b, "shop", secondHex)
		before := belongs(b, next, secondHex)
		time.Sleep(6 * time.Minute)
		untouched(t, "while it writes", b, next, before)
		cancel()
		<-ended
		time.Sleep(2 * time.Hour)
		for k := range b.Dump() {
			if strings.HasPrefix(k, prefix) {
				t.Errorf("%s is left", k)
			}
		}
		untouched(t, "after it", b, next, before)
		// What comes later still goes with the next life, on a node that knows nothing.
		write(1000)
		p.stop()
		q := newParty(t, b, holding(2))
		synctest.Wait()
		if _, err := q.delete(force("shop")); err != nil {
			t.Fatal(err)
		}
		nothingOf(t, b, "shop")
		check.Bucket(t, b)
	})
}

// A runtime that writes faster than the deletion lists does not keep it from its end.
func TestADeletionEndsThoughSomebodyWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		app, _ := live(t, b, "shop", firstHex)
		store, n := fault.New(b), 0
		store.Inject(fault.Rule{Op: fault.List, Before: func(context.Context, fault.Call) {
			n++
			put(t, b, fmt.Sprintf("%sobjects/late/%d", registry.RuntimePrefix("shop", app.UID), n))
		}})
		p := newParty(t, store, holding(1))
		synctest.Wait()
		if _, err := p.delete(force("shop")); err != nil {
			t.Fatal(err)
		}
		if _, err := registry.New(b, registry.Options{}).Application(t.Context(), "shop"); scafo.CodeOf(err) != scafo.CodeNotFound {
			t.Error(err)
		}
	})
}

// Every fault at every request: what was acknowledged is so, and another coordinator,
// which knows only the bucket, finishes what the mark began.
func TestFaultsAtEveryRequest(t *testing.T) {
	kinds := map[string]fault.Kind{
		"unavailable": fault.Unavailable, "throttled": fault.Throttled, "lost": fault.LostNotApplied, "applied": fault.LostApplied,
		"refused": fault.Refused, "denied": fault.Denied, "crash before": fault.CrashBefore, "crash after": fault.CrashAfter,
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			for skip, more := 0, true; more && !t.Failed(); skip++ {
				synctest.Test(t, func(t *testing.T) { more = faultAt(t, kind, skip) })
			}
		})
	}
}

func faultAt(t *testing.T, kind fault.Kind, skip int) (more bool) {
	b := memory.New()
	_, _ = live(t, b, "shop", firstHex)
	put(t, b, registry.RuntimePrefix("shop", oldUID)+"objects/x")
	store := fault.New(b)
	p := newParty(t, store, holding(1))
	synctest.Wait()
	armed := store.Inject(fault.Rule{Kind: kind, Skip: skip, Times: 1})
	_, err := p.delete(force("shop"))
	time.Sleep(time.Minute) // an announcement that was under way
	p.stop()
	switch {
	case err == nil:
		nothingOf(t, b, "shop")
	case armed.Hits() == 0:
		t.Errorf("without a fault: %v", err)
	case scafo.CodeOf(err) != scafo.CodeStoreUnavailable:
		t.Errorf("at request %d: %v", skip, err)
	}
	r := registry.New(b, registry.Options{})
	app, rerr := r.Application(t.Context(), "shop")
	q := newParty(t, b, holding(2))
	synctest.Wait()
	switch {
	case scafo.CodeOf(rerr) == scafo.CodeNotFound:
	case rerr != nil:
		t.Fatal(rerr)
	case app.Deleting != nil && skip%2 == 0:
		q.s.Resume(app) // as the next coordinator does by itself
		q.s.Resume(app)
		time.Sleep(time.Minute)
	default:
		if _, err := q.delete(force("shop")); err != nil {
			t.Errorf("at request %d: repeated: %v", skip, err)
		}
	}
	nothingOf(t, b, "shop")
	if _, err := q.delete(force("shop")); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("at request %d: once more: %v", skip, err)
	}
	next, _ := live(t, b, "shop", secondHex)
	before := belongs(b, next, secondHex)
	time.Sleep(2 * time.Hour)
	untouched(t, fmt.Sprintf("request %d", skip), b, next, before)
	check.Bucket(t, b)
	return armed.Hits() > 0
}

// A coordinator that lost the lease stops, leaves the rest, and says so; one that comes
// to a deletion of a higher fence does not touch it.
func TestADeposedCoordinatorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		p := newParty(t, b, holding(1))
		synctest.Wait()
		app, _ := live(t, b, "shop", firstHex)
		p.fleet.quiet = func(string, string) []string {
			p.lease.set(func(l *fakeLease) { l.fence = 0 })
			return nil
		}
		_, err := p.delete(force("shop"))
		if _, title := refusal(err); title != "Not the coordinator" {
			t.Error(err)
		}
		if len(belongs(b, app, firstHex)) < 8 {
			t.Error("it went on without the lease")
		}
		q := newParty(t, b, holding(2))
		synctest.Wait()
		q.fleet.quiet = func(string, string) []string {
			p.lease.set(func(l *fakeLease) { l.fence = 1 })
			_, err := p.delete(force("shop"))
			if _, title := refusal(err); title != "Not the coordinator" {
				t.Errorf("under a fence of yesterday: %v", err)
			}
			return nil
		}
		if _, err := q.delete(force("shop")); err != nil {
			t.Error(err)
		}
		nothingOf(t, b, "shop")
	})
}

// A request that began before the end of one life does not come to the next, though its
// node coordinates all the time: neither one whose answer was held up, nor one that
// was held up on its way.
func TestALateRequestReachesNobody(t *testing.T) {
	for name, rule := range map[string]func(wait func(context.Context, fault.Call)) fault.Rule{
		"the answer": func(wait func(context.Context, fault.Call)) fault.Rule { return fault.Rule{After: wait} },
		"on its way": func(wait func(context.Context, fault.Call)) fault.Rule { return fault.Rule{Before: wait} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New()
				store := fault.New(b)
				live(t, b, "shop", firstHex)
				p := newParty(t, store, holding(1))
				synctest.Wait()
				freeze := make(chan struct{})
				r := rule(func(context.Context, fault.Call) { <-freeze })
				r.Op, r.Key, r.Times = fault.Get, registry.ApplicationKey("shop"), 1
				store.Inject(r)
				late := make(chan error, 1)
				go func() {
					_, err := p.delete(force("shop"))
					late <- err
				}()
				synctest.Wait()
				if _, err := p.delete(force("shop")); err != nil {
					t.Fatal(err)
				}
				app, _ := live(t, b, "shop", secondHex)
				before := belongs(b, app, secondHex)
				if name == "on its way" {
					time.Sleep(31 * time.Second)
				}
				close(freeze)
				if err := <-late; err == nil {
					t.Error("it deleted something")
				}
				untouched(t, "after the late request", b, app, before)
			})
		})
	}
}
