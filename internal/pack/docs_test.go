package pack

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	reference = "../../docs/reference/projects.md"
	keysBegin = "<!-- keys -->\n"
	keysEnd   = "<!-- /keys -->\n"
)

// keyTable is the reference's account of the keys.
func keyTable() string {
	names := slices.Sorted(maps.Keys(keys))
	of := func(kind keyKind) string {
		var out []string
		for _, n := range names {
			if keys[n].kind == kind {
				out = append(out, "`"+n+"`")
			}
		}
		return strings.Join(out, ", ")
	}
	var b strings.Builder
	b.WriteString("| keys | |\n| --- | --- |\n")
	fmt.Fprintf(&b, "| %s | sent; whether a runtime serves it is its own word |\n", of(taken))
	fmt.Fprintf(&b, "| %s | applied here |\n", of(handled))
	fmt.Fprintf(&b, "| %s | applied here, by bundling here (`base_dir` with `no_bundle` must be main's directory) |\n", of(bundler))
	fmt.Fprintf(&b, "| %s | only mean something at Cloudflare: left out, with one line; for routes it names the `scafo domains add` that does it |\n", of(cloudflare))
	fmt.Fprintf(&b, "| %s | left out without a word |\n", of(noise))
	for _, n := range names {
		if r := keys[n]; r.kind == refused && r.todo != noService {
			fmt.Fprintf(&b, "| `%s` | refused: %s |\n", n, r.todo)
		}
	}
	var none []string
	for _, n := range names {
		if keys[n].todo == noService {
			none = append(none, "`"+n+"`")
		}
	}
	fmt.Fprintf(&b, "| %s | refused: %s |\n", strings.Join(none, ", "), noService)
	var inside []string
	for _, at := range slices.Sorted(maps.Keys(nested)) {
		for _, n := range nested[at] {
			inside = append(inside, "`"+strings.ReplaceAll(at, "[]", "")+"."+n+"`")
		}
	}
	fmt.Fprintf(&b, "| %s | left out, with one line |\n", strings.Join(inside, ", "))
	return b.String()
}

// The reference lists the keys that the code knows. Run with -update to write it
// anew.
func TestReferenceHasTheKeys(t *testing.T) {
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), keysBegin)
	_, after, ok2 := strings.Cut(rest, keysEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the keys", reference)
	}
	want := before + keysBegin + keyTable() + keysEnd + after
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s does not have the keys as they are: go test ./internal/pack -update", reference)
	}
	// What never leaves is listed there too.
	for _, n := range slices.Concat(secretNames[:5], secretDirs, keyStores, keyFiles) {
		if !strings.Contains(want, "`"+n+"`") {
			t.Errorf("%s does not name %s", reference, n)
		}
	}
}
