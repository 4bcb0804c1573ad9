package registry

import (
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/memory"
)

// Whoever changed an application died before it said so; a coordinator that listed
// placed by what it found.
func TestFollowerThatIsContradictedReadsTheApplicationAgain(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(a *scafo.Application)
		placement scafo.Placement
		rereads   bool
	}{
		"unblocked": {
			change:    func(a *scafo.Application) { a.Blocked = nil },
			placement: scafo.Placement{Nodes: []string{"a"}, DeploySeq: 1}, rereads: true,
		},
		"deployed": {
			change:    func(a *scafo.Application) { a.DeploySeq, a.Deployment = 2, "v2" },
			placement: scafo.Placement{DeploySeq: 2}, rereads: true,
		},
		"nothing speaks against it": {
			change:    func(a *scafo.Application) { a.Replicas.Count = 7 },
			placement: scafo.Placement{DeploySeq: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New()
			r := New(b, Options{})
			create(t, r, "shop")
			edit := func(f func(a *scafo.Application)) scafo.Application {
				d, err := Update(t.Context(), r, ApplicationKey("shop"), func(d *Doc[scafo.Application]) error { f(&d.Value); return nil })
				if err != nil {
					t.Fatal(err)
				}
				return d.Value
			}
			edit(func(a *scafo.Application) {
				a.Deployment, a.DeploySeq, a.DeploymentSeq, a.Blocked = "v1", 1, 1, &scafo.Stamp{By: "user"}
			})
			f := follow(t, b)
			f.refresh(true)
			f.store.Reset()
			now := edit(c.change) // and dies
			f.refresh(false)
			f.costs(1, 0)
			c.placement.Application, c.placement.UID = "shop", now.UID
			key := PlacementKey("shop", now.UID)
			if _, err := r.PutPlacement(t.Context(), c.placement); err != nil {
				t.Fatal(err)
			}
			if err := r.Announce(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			f.refresh(true)
			want := 2 // the revision, the placement
			if c.rereads {
				want++
			}
			f.costs(want, 0)
			seen := f.Snapshot().Applications["shop"]
			if (seen.Write == now.Write) != c.rereads {
				t.Errorf("it knows %+v of %+v", seen, now)
			}
		})
	}
}
