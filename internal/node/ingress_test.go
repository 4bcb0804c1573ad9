package node_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/node"
)

// A node mints a token once and keeps it; configured ones are all admitted, and the
// first of them is in the file, for its owner alone.
func TestIngressTokens(t *testing.T) {
	dir := t.TempDir()
	file := func() string {
		t.Helper()
		b, err := os.ReadFile(node.IngressTokenFile(dir))
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(node.IngressTokenFile(dir))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		return strings.TrimSpace(string(b))
	}
	minted, err := node.IngressTokens(dir, nil)
	if err != nil || len(minted) != 1 || len(minted[0]) < 40 || file() != minted[0] {
		t.Fatalf("%v, %v", minted, err)
	}
	if again, err := node.IngressTokens(dir, nil); err != nil || !slices.Equal(again, minted) {
		t.Errorf("%v, %v; minted before %v", again, err, minted)
	}
	if got, err := node.IngressTokens(dir, []string{"one", "two"}); err != nil || !slices.Equal(got, []string{"one", "two"}) || file() != "one" {
		t.Errorf("%v, %v, in the file %s", got, err, file())
	}
	if other, err := node.IngressTokens(t.TempDir(), nil); err != nil || other[0] == minted[0] {
		t.Errorf("two nodes minted one token: %v", err)
	}
}
