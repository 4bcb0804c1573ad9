package registry

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

func TestKeys(t *testing.T) {
	id := scafo.DeployID{Application: "shop", Hex: "0123456789abcdef"}
	exp := time.Date(2026, 1, 2, 3, 4, 59, 0, time.FixedZone("elsewhere", 3600))
	for want, got := range map[string]string{
		"_scafo/ids/root.json":                      IDKey("root"),
		"_scafo/operators/root.json":                OperatorKey("root"),
		"_scafo/operators.json":                     OperatorIndexKey,
		"_scafo/nodes/n1.json":                      NodeKey("n1"),
		"_scafo/heartbeats/n1.json":                 HeartbeatKey("n1"),
		"_scafo/applications/shop.json":             ApplicationKey("shop"),
		"_scafo/trust/shop.json":                    TrustKey("shop"),
		"_scafo/deployments/shop/u1/3f9c.json":      DeploymentKey("shop", "u1", "3f9c"),
		"_scafo/deploys/shop/0123456789abcdef.json": DeployKey(id),
		"_scafo/placements/shop/u1.json":            PlacementKey("shop", "u1"),
		"_scafo/domains/com/example/shop.json":      ClaimKey("shop.example.com"),
		"_scafo/domains/com/example/":               ClaimChildrenPrefix("example.com"),
		"_scafo/coordinator.json":                   CoordinatorKey,
		"_scafo/revision.json":                      RevisionKey,
		"_scafo/freeze.json":                        FreezeKey,
		"fleets/shop/u1/":                           RuntimePrefix("shop", "u1"),
		"_scafo/tokens/20260102T0204/":              TokenKey(exp, "kid", "jti")[:len("_scafo/tokens/20260102T0204/")],
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// No key lies beneath another one, no segment is too long for a store of files,
// and the claims of hosts are told apart.
func TestKeyProperties(t *testing.T) {
	label := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"a", "b", "json", "a-json", strings.Repeat("z", 63)}).Draw(t, "label")
	})
	rapid.Check(t, func(t *rapid.T) {
		hosts := map[string]string{}
		var keys []string
		for range 8 {
			h := strings.Join(rapid.SliceOfN(label, 2, 3).Draw(t, "labels"), ".")
			if hosts[ClaimKey(h)] != "" && hosts[ClaimKey(h)] != h {
				t.Fatalf("%s and %s have one claim", h, hosts[ClaimKey(h)])
			}
			hosts[ClaimKey(h)] = h
			_, parent, _ := strings.Cut(h, ".")
			if !strings.HasPrefix(ClaimKey(h), ClaimChildrenPrefix(parent)) {
				t.Fatalf("%s is no child of %s", h, parent)
			}
			name, uid := label.Draw(t, "name"), label.Draw(t, "uid")
			keys = append(keys, ClaimKey(h), ApplicationKey(name), DeploymentKey(name, uid, label.Draw(t, "version")), PlacementKey(name, uid),
				OperatorKey(name), OperatorIndexKey, DeployKey(scafo.DeployID{Application: name, Hex: uid}), TokenKey(time.Now(), name, uid))
		}
		for _, k := range keys {
			if slices.ContainsFunc(keys, func(o string) bool { return strings.HasPrefix(o, k+"/") }) {
				t.Fatalf("something lies beneath %s", k)
			}
			for s := range strings.SplitSeq(k, "/") {
				if s == "" || len(s) >= 200 {
					t.Fatalf("%s has segment %q", k, s)
				}
			}
			if !strings.HasPrefix(k, TokenPrefix) && !wellFormed(k) {
				t.Fatalf("%s is not well formed", k)
			}
		}
	})
}

func TestWellFormed(t *testing.T) {
	for _, bad := range []string{"", ".json", "a", "/a.json", "a//b.json", "a/../b.json", "./b.json", strings.Repeat("x", MaxSegment-4) + ".json"} {
		if wellFormed(bad) {
			t.Errorf("%q", bad)
		}
	}
	if !wellFormed(strings.Repeat("x", MaxSegment-5) + ".json") {
		t.Error("the longest segment")
	}
}
