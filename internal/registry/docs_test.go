package registry

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page on the registry has a row for each place, and none for another.
func TestReferenceHasEveryPlace(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/registry.md")
	if err != nil {
		t.Fatal(err)
	}
	places := []string{
		FleetKey, OperatorIndexKey, CoordinatorKey, RevisionKey, FreezeKey, IDPrefix, OperatorPrefix, NodePrefix, HeartbeatPrefix,
		ApplicationPrefix, TrustPrefix, DeploymentPrefix, DeployPrefix, PlacementPrefix, DomainPrefix, TokenPrefix, StoragePrefix,
		ProbePrefix,
	}
	// Whatever keys.go declares is among them.
	source, err := os.ReadFile("keys.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(regexp.MustCompile(`(?m)^\t\w+(Key|Prefix) += Prefix \+ "`).FindAllString(string(source), -1)); n != len(places) {
		t.Errorf("keys.go declares %d places, this test knows %d", n, len(places))
	}
	keys, _, _ := strings.Cut(string(page), "## Rules")
	rows := regexp.MustCompile("(?m)^\\| `(_scafo/[^`]+)` \\|").FindAllStringSubmatch(keys, -1)
	begins := func(key, place string) bool {
		return key == place || strings.HasSuffix(place, "/") && strings.HasPrefix(key, place)
	}
	for _, p := range places {
		if !slices.ContainsFunc(rows, func(r []string) bool { return begins(r[1], p) }) {
			t.Errorf("docs/reference/registry.md has no row for %s", p)
		}
	}
	for _, r := range rows {
		if !slices.ContainsFunc(places, func(p string) bool { return begins(r[1], p) }) {
			t.Errorf("docs/reference/registry.md has a row for %s, which is no place", r[1])
		}
	}
}
