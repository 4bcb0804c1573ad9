package registry_test

import (
	"context"
	"errors"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

// operation is one that changes documents which may stand there already.
type operation struct {
	name  string
	key   string // of the document that it changes
	clear []string
	do    func(ctx context.Context, r *registry.Registry) error
}

// operations are those of the registry; clear are the fields that would keep one from
// having anything to do, or from being allowed.
func operations() []operation {
	app, machine := registry.ApplicationKey("shop"), registry.NodeKey("n1")
	id, _ := scafo.ParseDeployID(theDeploy)
	closed := []string{"deleting", "blocked", "retired"}
	moved := node("n1")
	moved.Address = "http://10.9.9.9:7420"
	return []operation{
		{"block", app, closed, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.BlockApplication(ctx, "shop", "root")
			return err
		}},
		{"unblock", app, []string{"deleting"}, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.UnblockApplication(ctx, "shop")
			return err
		}},
		{"retire", app, closed, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.RetireApplication(ctx, "shop", "root")
			return err
		}},
		{"unretire", app, []string{"deleting"}, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.UnretireApplication(ctx, "shop")
			return err
		}},
		{"label", app, closed, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.LabelApplication(ctx, "shop", map[string]string{"plan": "free"})
			return err
		}},
		{"select", app, closed, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.SelectNodes(ctx, "shop", map[string]string{"region": "us"})
			return err
		}},
		{"scale", app, closed, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.ScaleApplication(ctx, "shop", scafo.Replicas{All: true})
			return err
		}},
		{"claim", app, closed, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.ClaimDomain(ctx, "shop", "other.example", false)
			return err
		}},
		{"trust", registry.TrustKey("shop"), nil, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.Trust(ctx, "shop", scafo.TrustRule{Issuer: scafo.GitLabIssuer, Subjects: []string{"x"}}, false)
			return err
		}},
		{"add an operator", registry.OperatorIndexKey, nil, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.AddOperator(ctx, tenant("new"))
			return err
		}},
		{"register", machine, []string{"removed"}, func(ctx context.Context, r *registry.Registry) error {
			_, err := r.RegisterNode(ctx, moved)
			return err
		}},
		{"drain", machine, []string{"removed", "drain"}, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.DrainNode(ctx, "n1", "cli")
			return err
		}},
		{"undrain", machine, []string{"removed"}, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.UndrainNode(ctx, "n1")
			return err
		}},
		{"remove", machine, []string{"removed"}, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.RemoveNode(ctx, "n1", "cli")
			return err
		}},
		{"admit", machine, nil, func(ctx context.Context, r *registry.Registry) error {
			_, _, err := r.AdmitNode(ctx, "n1")
			return err
		}},
		{"heartbeat", registry.HeartbeatKey("n1"), nil, func(ctx context.Context, r *registry.Registry) error {
			return r.WriteHeartbeat(ctx, scafo.Heartbeat{Node: "n1", At: at, BootID: "b", Processes: []scafo.ProcessStatus{}}, false)
		}},
		{"place", registry.PlacementKey("shop", theUID), nil, func(ctx context.Context, r *registry.Registry) error {
			_, err := r.PutPlacement(ctx, scafo.Placement{Application: "shop", UID: theUID, Nodes: []string{"n2"}, Fence: 8, DecidedAt: at})
			return err
		}},
		{"move a deploy", registry.DeployKey(id), nil, func(ctx context.Context, r *registry.Registry) error {
			_, err := r.UpdateDeploy(ctx, id, func(d *scafo.Deploy) error { d.Step = "on"; return nil })
			return err
		}},
		{"announce", registry.RevisionKey, nil, func(ctx context.Context, r *registry.Registry) error {
			return r.Announce(ctx, registry.NodeKey("n1"))
		}},
	}
}

// bucketFor is a bucket with the documents of a release, each changed by f.
func bucketFor(t *testing.T, release string, o operation, f func(k kept, v map[string]any)) *memory.Store {
	t.Helper()
	b := memory.New()
	for _, k := range keptDocuments(t) {
		if k.release != release || k.name == "freeze" {
			continue
		}
		v := object(t, k.body)
		if k.key == o.key {
			for _, field := range o.clear {
				delete(v, field)
			}
		} else if k.name == "application" {
			delete(v, "deleting")
		}
		f(k, v)
		putObject(t, b, k.key, v)
	}
	return b
}

func releases(t *testing.T) map[string]bool {
	out := map[string]bool{}
	for _, k := range keptDocuments(t) {
		out[k.release] = true
	}
	return out
}

// What an operation of this release writes over a document of any release keeps what
// a later release put there.
func TestEveryOperationKeepsWhatItDoesNotKnow(t *testing.T) {
	for release := range releases(t) {
		for _, o := range operations() {
			b := bucketFor(t, release, o, func(k kept, v map[string]any) { withStrangers(v, k.typ) })
			before := getObject(t, b, o.key)
			if err := o.do(t.Context(), open(b)); err != nil {
				t.Errorf("%s over documents of %s: %v", o.name, release, err)
				continue
			}
			after := getObject(t, b, o.key)
			if before["write"] == after["write"] {
				t.Errorf("%s over documents of %s wrote nothing", o.name, release)
			}
			if after["Name"] != before["Name"] || after["fromLater"] == nil {
				t.Errorf("%s over documents of %s lost what a later release had written: %v", o.name, release, after)
			}
		}
	}
}

// No operation of this release writes over a document of a newer format; each says
// which one it met.
func TestNoOperationTouchesANewerDocument(t *testing.T) {
	for release := range releases(t) {
		for _, o := range operations() {
			b := bucketFor(t, release, o, func(k kept, v map[string]any) {
				if k.key == o.key {
					v["v"] = scafo.FormatVersion + 1
				}
			})
			before := getObject(t, b, o.key)
			err := o.do(t.Context(), open(b))
			var newer *registry.NewerError
			if !errors.As(err, &newer) || newer.Key != o.key {
				t.Errorf("%s over a newer document: %v", o.name, err)
			}
			if after := getObject(t, b, o.key); after["write"] != before["write"] {
				t.Errorf("%s wrote over a newer document", o.name)
			}
		}
	}
}
