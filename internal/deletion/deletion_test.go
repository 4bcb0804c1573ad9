package deletion_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/costtest"
	"github.com/scafo/scafo/internal/deletion"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// Everything of the name goes, whatever life it is of; the answer names each key once;
// what belongs to others stays; and the next application of the name is new.
func TestDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		p := newParty(t, b, holding(7))
		app, keys := live(t, b, "shop", "1111111111111111")
		old := []string{
			registry.RuntimePrefix("shop", oldUID) + "objects/x", registry.DeploymentKey("shop", oldUID, "v0"),
			registry.PlacementKey("shop", oldUID), registry.DeployKey(scafo.DeployID{Application: "shop", Hex: "2222222222222222"}),
		}
		put(t, b, old...)
		_, theirs := live(t, b, "shopping", "3333333333333333") // the name is its beginning
		before := b.Dump()

		got, err := p.delete(force("shop"))
		want := slices.Sorted(slices.Values(append(slices.Clone(keys), old...)))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		nothingOf(t, b, "shop")
		for _, k := range theirs {
			if string(before[k]) != string(b.Dump()[k]) {
				t.Errorf("%s of another application was changed", k)
			}
		}
		if _, err := p.delete(force("shop")); scafo.CodeOf(err) != scafo.CodeNotFound {
			t.Errorf("a second deletion: %v", err)
		}
		next, created, err := registry.New(b, registry.Options{}).CreateApplication(t.Context(), "shop", "op", nil)
		if err != nil || !created || next.UID == app.UID || next.DeploySeq != 0 || next.Deployment != "" || len(next.Domains) != 0 || next.Deleting != nil {
			t.Errorf("%+v %v %v", next, created, err)
		}
		check.Bucket(t, b)
	})
}

func TestWhatADeletionAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		p := newParty(t, b, holding(1))
		r := registry.New(b, registry.Options{})
		plain := deletion.Request{Application: "shop", Caller: "op"}
		wantCode := func(what string, want scafo.Code) {
			t.Helper()
			_, err := p.delete(plain)
			if scafo.CodeOf(err) != want {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
			if a, err := r.Application(t.Context(), "shop"); want != scafo.CodeNotFound && (err != nil || a.Deleting != nil) {
				t.Errorf("%s: refused and changed: %+v %v", what, a, err)
			}
		}
		wantCode("there is none", scafo.CodeNotFound)
		live(t, b, "shop", "1111111111111111")
		wantCode("not retired", scafo.CodeNotRetired)
		if _, _, err := r.RetireApplication(t.Context(), "shop", "op"); err != nil {
			t.Fatal(err)
		}
		wantCode("just retired", scafo.CodeRetireGrace)
		time.Sleep(grace - time.Second)
		wantCode("a second too early", scafo.CodeRetireGrace)
		time.Sleep(time.Second)
		if _, err := p.delete(plain); err != nil {
			t.Error(err)
		}
		nothingOf(t, b, "shop")
		// Force skips both.
		live(t, b, "shop", "2222222222222222")
		if _, err := p.delete(force("shop")); err != nil {
			t.Error(err)
		}
		nothingOf(t, b, "shop")
	})
}

// While an application is being deleted nothing else changes it, and another request
// asks nothing of it any more: it waits for the end.
func TestADeletionThatHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		p := newParty(t, b, holding(3))
		_, keys := live(t, b, "shop", "1111111111111111")
		hold := make(chan struct{})
		p.fleet.quiet = func(string, string) []string {
			<-hold
			return []string{"b"}
		}
		type result struct {
			keys []string
			err  error
		}
		results := make(chan result, 2)
		for _, req := range []deletion.Request{force("shop"), {Application: "shop", Caller: "second"}} {
			go func() {
				got, err := p.delete(req)
				results <- result{got, err}
			}()
			synctest.Wait()
		}
		r := registry.New(b, registry.Options{})
		a, err := r.Application(t.Context(), "shop")
		if err != nil || a.Deleting == nil || a.Deleting.Fence != 3 || a.Deleting.By != "op" {
			t.Errorf("%+v %v", a.Deleting, err)
		}
		if _, _, err := r.UnretireApplication(t.Context(), "shop"); scafo.CodeOf(err) != scafo.CodeApplicationDeleting {
			t.Errorf("a setter: %v", err)
		}
		if _, _, err := r.AddApplication(t.Context(), "shop", "op", nil); scafo.CodeOf(err) != scafo.CodeApplicationDeleting {
			t.Errorf("a deploy: %v", err)
		}
		close(hold)
		var named []string
		for range 2 {
			res := <-results
			if res.err != nil {
				t.Error(res.err)
			}
			named = append(named, res.keys...)
		}
		if slices.Sort(named); !slices.Equal(named, keys) {
			t.Errorf("the answers name %d keys together: %v", len(named), named)
		}
	})
}

// A caller that leaves ends no deletion, and one that does not read holds it up only
// until it leaves.
func TestACallerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		p := newParty(t, b, holding(3))
		synctest.Wait()
		live(t, b, "shop", "1111111111111111")
		ctx, cancel := context.WithCancel(t.Context())
		o, err := p.s.Delete(ctx, force("shop"))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Hour)
		if _, err := registry.New(b, registry.Options{}).Application(t.Context(), "shop"); err != nil {
			t.Error("nobody read the keys, and they are gone")
		}
		o.Keys.Close()
		o.Keys.Close()
		synctest.Wait()
		nothingOf(t, b, "shop")
	})
}

type forwarder struct {
	asked []string
	err   error
}

func (f *forwarder) Forward(_ context.Context, to scafo.Node, r deletion.Request) (*deletion.Answer, error) {
	f.asked = append(f.asked, fmt.Sprintf("%s %s %s %v %v", to.ID, r.Application, r.Caller, r.Force, r.Forwarded))
	if f.err != nil {
		return nil, f.err
	}
	return &deletion.Answer{Status: 418, Body: io.NopCloser(strings.NewReader("as it is"))}, nil
}

func TestWhoDeletes(t *testing.T) {
	lost := errors.New("connection refused")
	for name, c := range map[string]struct {
		lease     *fakeLease
		forwarded bool
		noKey     bool
		silent    error
		deleted   bool
		asks      string
		code      scafo.Code
		title     string
		offers    int
	}{
		"the holder":                        {lease: &fakeLease{fence: 4}, deleted: true},
		"the holder, asked by a node":       {lease: &fakeLease{fence: 4}, forwarded: true, deleted: true},
		"nobody, and this node may":         {lease: &fakeLease{free: 5}, deleted: true, offers: 1},
		"nobody, and another one was first": {lease: &fakeLease{winner: "b"}, asks: "b", offers: 1},
		"nobody, and nobody may":            {lease: &fakeLease{}, code: scafo.CodeDraining, title: "No node is coordinating", offers: 1},
		"another one":                       {lease: &fakeLease{held: true, others: scafo.Lease{Node: "b"}}, asks: "b"},
		"another one, which is silent":      {lease: &fakeLease{held: true, others: scafo.Lease{Node: "b"}}, asks: "b", silent: lost, code: scafo.CodeDraining, title: "The coordinator does not answer"},
		"another one, without a record":     {lease: &fakeLease{held: true, others: scafo.Lease{Node: "c"}}, code: scafo.CodeDraining, title: "The coordinator does not answer"},
		"another one, and no key to ask it": {lease: &fakeLease{held: true, others: scafo.Lease{Node: "b"}}, noKey: true, code: scafo.CodeCapabilityMissing},
		"an earlier life of this node":      {lease: &fakeLease{held: true, others: scafo.Lease{Node: "a"}}, code: scafo.CodeDraining, title: "No node is coordinating", offers: 1},
		"it was handed on already":          {lease: &fakeLease{held: true, others: scafo.Lease{Node: "b"}}, forwarded: true, code: scafo.CodeDraining, title: "Not the coordinator"},
		"handed on, and nobody coordinates": {lease: &fakeLease{free: 5}, forwarded: true, code: scafo.CodeDraining, title: "Not the coordinator"},
		"the lease cannot be read":          {lease: &fakeLease{err: scafo.Errorf(scafo.CodeStoreUnavailable, "away")}, code: scafo.CodeStoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New()
				lease, f := c.lease, &forwarder{err: c.silent}
				p := newParty(t, b, lease, func(d *deletion.Config) {
					if !c.noKey {
						d.Forwarder = f
					}
				})
				live(t, b, "shop", "1111111111111111")
				_, err := registry.Update(t.Context(), registry.New(b, registry.Options{}), registry.NodeKey("b"), func(d *registry.Doc[scafo.Node]) error {
					d.Value = scafo.Node{ID: "b", Address: "http://b"}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				before := b.Dump()
				r := force("shop")
				r.Forwarded = c.forwarded
				o, err := p.s.Delete(t.Context(), r)
				if code, title := refusal(err); code != c.code || title != c.title {
					t.Errorf("refused with %q %q: %v", code, title, err)
				}
				want := []string(nil)
				if c.asks != "" {
					want = []string{c.asks + " shop op true true"}
				}
				if !slices.Equal(f.asked, want) || lease.offers != c.offers {
					t.Errorf("asked %v, offered %d times", f.asked, lease.offers)
				}
				switch {
				case c.deleted:
					if _, err := all(o.Keys); err != nil {
						t.Error(err)
					}
					nothingOf(t, b, "shop")
				case err == nil:
					if o.Answer == nil || o.Answer.Status != 418 {
						t.Errorf("the coordinator's answer became %+v", o)
					}
					fallthrough
				default:
					if !maps.EqualFunc(before, b.Dump(), slices.Equal) {
						t.Error("it changed something")
					}
				}
			})
		})
	}
}

// What a deletion costs: the small one, and the rest by the page.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		store := fault.New(b)
		p := newParty(t, store, holding(1))
		synctest.Wait()
		live(t, b, "shop", "1111111111111111")
		cost := func(name string) map[fault.Op]int {
			// As it is in a fleet that is at rest: what this node announces next is one write,
			// and what it follows it has read.
			if err := p.reg.Announce(t.Context(), registry.ApplicationKey(name)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.fleet.follower.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			store.Reset()
			if _, err := p.delete(force(name)); err != nil {
				t.Fatal(err)
			}
			return store.Counts()
		}
		row := costtest.Rows(t)["DELETE /v1/applications/:name"]
		says := func(what string, n map[fault.Op]int, times costtest.Times) {
			times["for an operator who is no admin"], times["for looking again where there were keys"] = 0, 1
			// The lease is read by whoever does not know of it.
			row.Check(t, what, times, n[fault.Get]+1, n[fault.Replace]+n[fault.Delete], n[fault.List])
		}
		// Reads: one to mark and one to own, one for a deploy under way, four looks before
		// deletes, the record and a claim of it, the trust policy and the look at it, the
		// record; and the follower's revision with the record that changed. Writes: the
		// mark, a claim, the trust policy, the record, and three announcements. Listings: the four places, until
		// they are empty.
		if n, want := cost("shop"), (map[fault.Op]int{fault.Get: 14, fault.Replace: 7, fault.Delete: 7, fault.List: 8}); !maps.Equal(n, want) {
			t.Errorf("%v, want %v", n, want)
		} else {
			says("the small one", n, costtest.Times{
				"for each claim": 1, "for announcing claims": 1, "for a trust policy": 1, "for each key": 7,
				"for each 1,000 keys of a kind": 4, "for each 1,000 keys of a kind beyond the first": 0,
			})
		}
		if _, _, err := registry.New(b, registry.Options{}).CreateApplication(t.Context(), "big", "op", nil); err != nil {
			t.Fatal(err)
		}
		for i := range 5000 {
			put(t, b, fmt.Sprintf("fleets/big/%s/%d", oldUID, i))
		}
		// A look and a listing for each 1,000 keys, and neither claim nor trust.
		if n, want := cost("big"), (map[fault.Op]int{fault.Get: 13, fault.Replace: 4, fault.Delete: 5000, fault.List: 5 + 3 + 4}); !maps.Equal(n, want) {
			t.Errorf("5,000 keys: %v, want %v", n, want)
		} else {
			says("the big one", n, costtest.Times{
				"for each claim": 0, "for announcing claims": 0, "for a trust policy": 0, "for each key": 5000,
				"for each 1,000 keys of a kind": 5, "for each 1,000 keys of a kind beyond the first": 4,
			})
		}
	})
}
