package route

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the names are, they come into their order, and each keeps what is its own.
func TestNamesComeIntoTheirOrder(t *testing.T) {
	name := rapid.OneOf(rapid.StringMatching(`[a-c-]{1,4}`), rapid.StringMatching(`app-[0-9]{1,12}`), rapid.StringMatching(`(abcdefgh){0,3}[a-z]{0,9}`), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(name, rapid.ID).Draw(t, "names")
		all := make([]served, len(names))
		for i, n := range names {
			all[i] = served{name: n, uid: "uid of " + n}
		}
		inOrder(all)
		slices.SortFunc(names, strings.Compare)
		for i, n := range names {
			if all[i].name != n || all[i].uid != "uid of "+n {
				t.Fatalf("%d is %q with %q, want %q", i, all[i].name, all[i].uid, n)
			}
		}
	})
}
