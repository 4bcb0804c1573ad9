package node

import (
	"log/slog"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// A key that is revoked elsewhere is refused here as soon as this node hears of it,
// by a hint or by the revision, or fell behind what the revision keeps.
func TestRevokedKeysAreForgotten(t *testing.T) {
	for name, hear := range map[string]func(f *registry.Follower) error{
		"nothing": nil,
		"a hint":  func(f *registry.Follower) error { f.Hint(registry.OperatorKey("op")); return nil },
		"the revision": func(f *registry.Follower) error {
			_, err := f.Refresh(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New()
			here, elsewhere := registry.New(b, registry.Options{}), registry.New(b, registry.Options{})
			root, err := keyfile.New("root")
			if err != nil {
				t.Fatal(err)
			}
			k, err := keyfile.New("op")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := elsewhere.InitFleet(t.Context(), scafo.Operator{ID: "root", PublicKey: root.Public(), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := elsewhere.AddOperator(t.Context(), scafo.Operator{ID: "op", PublicKey: k.Public(), Role: scafo.RoleOperator, Applications: scafo.Scope{"shop"}}); err != nil {
				t.Fatal(err)
			}
			v := auth.New(here, auth.Options{Log: slog.New(slog.DiscardHandler)})
			f := registry.NewFollower(here)
			f.OnAnnounced(func(keys []string) { forgetKeys(v, keys) })
			if _, err := f.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			identify := func() error {
				token, err := k.Token(time.Now())
				if err != nil {
					t.Fatal(err)
				}
				_, err = v.Identify(t.Context(), token)
				return err
			}
			if err := identify(); err != nil {
				t.Fatal(err)
			}
			if _, err := elsewhere.RemoveOperator(t.Context(), "op"); err != nil {
				t.Fatal(err)
			}
			if hear == nil {
				if err := identify(); err != nil {
					t.Errorf("a cached key costs a request each time: %v", err)
				}
				return
			}
			if err := hear(f); err != nil {
				t.Fatal(err)
			}
			if err := identify(); scafo.CodeOf(err) != scafo.CodeAuthInvalid {
				t.Errorf("a revoked key is let in: %v", err)
			}
		})
	}
}

func TestForgetKeysOfEveryKind(t *testing.T) {
	b := memory.New()
	r := registry.New(b, registry.Options{})
	k, err := keyfile.New("n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RegisterNode(t.Context(), scafo.Node{ID: "n1", PublicKey: k.Public(), Address: "http://127.0.0.1:1", Version: "1"}); err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string][]string{
		"its record": {registry.ApplicationKey("shop"), registry.NodeKey("n1")},
		"anything":   nil,
		"others":     {registry.NodeKey("n2"), registry.OperatorKey("n2"), registry.IDKey("n1"), "_scafo/nodes/n1", "nonsense"},
	} {
		v := auth.New(r, auth.Options{Log: slog.New(slog.DiscardHandler)})
		admitted := func() bool {
			token, err := k.Token(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			_, err = v.Identify(t.Context(), token)
			return err == nil
		}
		if !admitted() {
			t.Fatal("not admitted")
		}
		if _, err := registry.Update(t.Context(), r, registry.NodeKey("n1"), func(d *registry.Doc[scafo.Node]) error {
			d.Value.Removed = &scafo.Stamp{By: "root"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		forgetKeys(v, keys)
		if got, want := admitted(), name == "others"; got != want {
			t.Errorf("%s: admitted %v, want %v", name, got, want)
		}
		if _, err := registry.Update(t.Context(), r, registry.NodeKey("n1"), func(d *registry.Doc[scafo.Node]) error {
			d.Value.Removed = nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
