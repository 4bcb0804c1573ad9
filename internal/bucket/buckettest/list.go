package buckettest

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/bucket"
)

// parallelWrites bounds the writes under way where a test only prepares objects.
const parallelWrites = 16

func createAll(t *testing.T, b bucket.Bucket, keys []string) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(parallelWrites)
	for _, k := range keys {
		g.Go(func() error {
			_, err := b.Create(ctx, k, []byte(k))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func keysOf(objects []bucket.Info) []string {
	keys := make([]string, 0, len(objects))
	for _, o := range objects {
		keys = append(keys, o.Key)
	}
	return keys
}

func wantPage(t *testing.T, b bucket.Bucket, prefix string, o bucket.ListOptions, keys, prefixes []string) bucket.Page {
	t.Helper()
	page, err := b.List(t.Context(), prefix, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := keysOf(page.Objects); !slices.Equal(got, keys) {
		t.Errorf("list %q %+v: keys %q, want %q", prefix, o, got, keys)
	}
	if !slices.Equal(page.Prefixes, prefixes) {
		t.Errorf("list %q %+v: prefixes %q, want %q", prefix, o, page.Prefixes, prefixes)
	}
	return page
}

func testList(t *testing.T, b bucket.Bucket) {
	createAll(t, b, []string{"list/a", "list/b/one", "list/b/two", "list/c", "listed", "other/x"})
	wantPage(t, b, "list/", bucket.ListOptions{}, []string{"list/a", "list/b/one", "list/b/two", "list/c"}, nil)
	// A prefix is text, not a folder.
	wantPage(t, b, "list", bucket.ListOptions{},
		[]string{"list/a", "list/b/one", "list/b/two", "list/c", "listed"}, nil)
	wantPage(t, b, "list/b/t", bucket.ListOptions{}, []string{"list/b/two"}, nil)
	wantPage(t, b, "", bucket.ListOptions{},
		[]string{"list/a", "list/b/one", "list/b/two", "list/c", "listed", "other/x"}, nil)
	wantPage(t, b, "list/", bucket.ListOptions{After: "list/b/one"}, []string{"list/b/two", "list/c"}, nil)
	wantPage(t, b, "list/", bucket.ListOptions{After: "list/b/oo"}, []string{"list/b/two", "list/c"}, nil)
	wantPage(t, b, "list/", bucket.ListOptions{After: "list/c"}, nil, nil)
	wantPage(t, b, "list/", bucket.ListOptions{After: "a"},
		[]string{"list/a", "list/b/one", "list/b/two", "list/c"}, nil)
	page := wantPage(t, b, "list/a", bucket.ListOptions{}, []string{"list/a"}, nil)
	if page.Next != "" {
		t.Errorf("the only page names a next one: %q", page.Next)
	}
	if got := page.Objects[0]; got.Size != int64(len("list/a")) || got.ETag == "" || got.Modified.IsZero() {
		t.Errorf("row %+v", got)
	}

	var walked []string
	if err := bucket.Walk(t.Context(), b, "list/", func(i bucket.Info) error {
		walked = append(walked, i.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"list/a", "list/b/one", "list/b/two", "list/c"}; !slices.Equal(walked, want) {
		t.Errorf("walk: %q, want %q", walked, want)
	}
}

func testListDelimiter(t *testing.T, b bucket.Bucket) {
	createAll(t, b, []string{"d/a", "d/b/one", "d/b/two", "d/c/x/y", "d/d", "e"})
	slash := bucket.ListOptions{Delimiter: "/"}
	wantPage(t, b, "d/", slash, []string{"d/a", "d/d"}, []string{"d/b/", "d/c/"})
	wantPage(t, b, "", slash, []string{"e"}, []string{"d/"})
	wantPage(t, b, "d", slash, nil, []string{"d/"})
	wantPage(t, b, "d/b/", slash, []string{"d/b/one", "d/b/two"}, nil)
	wantPage(t, b, "d/c/", slash, nil, []string{"d/c/x/"})

	// Deleting the last object of a folder leaves no folder behind.
	if err := b.Delete(t.Context(), "d/c/x/y"); err != nil {
		t.Fatal(err)
	}
	wantPage(t, b, "d/", slash, []string{"d/a", "d/d"}, []string{"d/b/"})
}

// testListPages reads the same keys with every page size.
func testListPages(t *testing.T, b bucket.Bucket) {
	keys := []string{
		"p/a", "p/b/1", "p/b/2", "p/b/3", "p/c", "p/d/1", "p/e/1", "p/e/2", "p/f", "p/g",
	}
	createAll(t, b, keys)
	flat := []string{"p/a", "p/c", "p/f", "p/g"}
	rolled := []string{"p/b/", "p/d/", "p/e/"}
	for limit := 1; limit <= len(keys)+1; limit++ {
		var got []string
		readPages(t, b, "p/", bucket.ListOptions{Max: limit}, func(p bucket.Page) {
			got = append(got, keysOf(p.Objects)...)
		})
		if !slices.Equal(got, keys) {
			t.Errorf("pages of %d: %q, want %q", limit, got, keys)
		}
		var objects, prefixes []string
		readPages(t, b, "p/", bucket.ListOptions{Max: limit, Delimiter: "/"}, func(p bucket.Page) {
			objects = append(objects, keysOf(p.Objects)...)
			prefixes = append(prefixes, p.Prefixes...)
		})
		if !slices.Equal(objects, flat) || !slices.Equal(prefixes, rolled) {
			t.Errorf("pages of %d with a delimiter: %q and %q, want %q and %q", limit, objects, prefixes, flat, rolled)
		}
	}
}

// readPages reads all pages and checks their sizes.
func readPages(t *testing.T, b bucket.Bucket, prefix string, o bucket.ListOptions, each func(bucket.Page)) {
	t.Helper()
	for pages := 0; ; pages++ {
		if pages > 100 {
			t.Fatalf("list %q %+v does not end", prefix, o)
		}
		page, err := b.List(t.Context(), prefix, o)
		if err != nil {
			t.Fatal(err)
		}
		rows := len(page.Objects) + len(page.Prefixes)
		if o.Max > 0 && rows > o.Max {
			t.Fatalf("a page of %d rows, asked for %d", rows, o.Max)
		}
		each(page)
		if page.Next == "" {
			return
		}
		if rows == 0 {
			t.Fatalf("an empty page names a next one: %q", page.Next)
		}
		o.After = page.Next
	}
}

// testListOrder holds listings to the order of bytes, which is not the order of
// a walk through folders: "-" and "." come before "/", digits after it.
func testListOrder(t *testing.T, b bucket.Bucket) {
	keys := []string{
		"o/a-1", "o/a.json", "o/a/x", "o/a/y", "o/a0", "o/A", "o/Z/1", "o/_", "o/é", "o/b b", "o/b!/1", "o/b",
	}
	createAll(t, b, keys)
	sort.Strings(keys)
	for _, limit := range []int{0, 1, 2, 3} {
		var got []string
		readPages(t, b, "o/", bucket.ListOptions{Max: limit}, func(p bucket.Page) {
			got = append(got, keysOf(p.Objects)...)
		})
		if !slices.Equal(got, keys) {
			t.Errorf("pages of %d: %q, want %q", limit, got, keys)
		}
	}
	for i, k := range keys {
		wantPage(t, b, "o/", bucket.ListOptions{After: k}, keys[i+1:], nil)
	}
}

// testListMany has more keys than S3 puts on one page.
func testListMany(t *testing.T, b bucket.Bucket) {
	const objects = 1005
	keys := make([]string, objects)
	for i := range keys {
		keys[i] = fmt.Sprintf("many/%02d/%04d", i/100, i)
	}
	createAll(t, b, keys)
	page, err := b.List(t.Context(), "many/", bucket.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Objects) != 1000 || page.Next == "" {
		t.Errorf("the first page has %d rows and next %q, want 1000 and one more", len(page.Objects), page.Next)
	}
	var got []string
	if err := bucket.Walk(t.Context(), b, "many/", func(i bucket.Info) error {
		got = append(got, i.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, keys) {
		t.Errorf("walked %d keys, want %d in order", len(got), len(keys))
	}
	var prefixes []string
	readPages(t, b, "many/", bucket.ListOptions{Delimiter: "/", Max: 4}, func(p bucket.Page) {
		prefixes = append(prefixes, p.Prefixes...)
	})
	if len(prefixes) != 11 || !slices.IsSorted(prefixes) || !strings.HasPrefix(prefixes[0], "many/00/") {
		t.Errorf("prefixes %q", prefixes)
	}
}
