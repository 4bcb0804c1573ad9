package layout_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// bundle makes a sealed bundle whose main module is code.
func bundle(t *testing.T, code string, assets map[string]string) *layout.Bundle {
	t.Helper()
	b := &layout.Bundle{
		Manifest: &layout.Manifest{
			V: layout.ManifestVersion, Product: "celld-workerd", ScriptName: "app", Main: "index.js", CompatibilityDate: "2026-11-01",
			Modules: []layout.Module{{Name: "index.js", Type: layout.ESModule}, {Name: "dir/t.txt", Type: layout.Text}},
			Vars:    map[string]json.RawMessage{"A": json.RawMessage(`"x"`)},
		},
		Contents: map[string][]byte{"index.js": []byte(code), "dir/t.txt": []byte("text")},
	}
	if assets != nil {
		b.Manifest.Assets = &layout.Assets{Headers: "/*\n  A: b\n"}
		dir := t.TempDir()
		for i, name := range slices.Sorted(maps.Keys(assets)) {
			source := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(source, []byte(assets[name]), 0o600); err != nil {
				t.Fatal(err)
			}
			b.Assets = append(b.Assets, layout.AssetFile{
				Asset: layout.Asset{Path: name, Bytes: int64(len(assets[name])), SHA256: layout.Digest([]byte(assets[name]))}, Source: source,
			})
		}
	}
	if err := b.Seal(); err != nil {
		t.Fatal(err)
	}
	return b
}

var someAssets = map[string]string{"index.html": "<p>", "css/a b.css": "a{}", "same.html": "<p>"}

// contents reads a fetched deployment's directory.
func contents(t *testing.T, d *layout.Deployment) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS(d.Dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(d.Dir, name))
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func fetch(ctx context.Context, t *testing.T, b bucket.Bucket) (*layout.Deployment, error) {
	t.Helper()
	p, _, err := layout.Load(ctx, b)
	if err != nil {
		return nil, err
	}
	return layout.Fetch(ctx, b, p, layout.FetchOptions{Root: t.TempDir()})
}

func TestPublishAndFetch(t *testing.T) {
	ctx := t.Context()
	b := memory.New(memory.Files())
	if _, _, err := layout.Load(ctx, b); !errors.Is(err, layout.ErrNoPointer) {
		t.Fatalf("an empty bucket: %v", err)
	}
	want := bundle(t, "code", someAssets)
	if err := layout.Publish(ctx, b, want); err != nil {
		t.Fatal(err)
	}
	v := want.Manifest.Version
	dump := b.Dump()
	html, css := layout.Digest([]byte("<p>")), layout.Digest([]byte("a{}"))
	keys := []string{
		"deploy/current.json", "deploy/app/current.json", "deploy/app/" + v + "/manifest.json", "deploy/app/" + v + "/assets.json",
		"deploy/app/" + v + "/modules/index.js", "deploy/app/" + v + "/modules/dir/t.txt",
		"deploy-blobs/assets/sha256/" + html[:2] + "/" + html, "deploy-blobs/assets/sha256/" + css[:2] + "/" + css,
	}
	slices.Sort(keys)
	if got := slices.Sorted(maps.Keys(dump)); !slices.Equal(got, keys) {
		t.Errorf("the bucket has\n%q\nwant\n%q", got, keys)
	}
	if got, want := string(dump["deploy/current.json"]), `{"script_name":"app","version":"`+v+`","prefix":"deploy/app/`+v+`/","rollout":{"percent":100}}`; got != want {
		t.Errorf("the pointer is %s, want %s", got, want)
	}
	for _, cache := range []string{"", filepath.Join(t.TempDir(), "cache")} {
		p, _, err := layout.Load(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time from the cache
			d, err := layout.Fetch(ctx, b, p, layout.FetchOptions{Root: t.TempDir(), Assets: cache})
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]string{
				"modules/" + layout.Digest([]byte("code")): "code", "modules/" + layout.Digest([]byte("text")): "text",
				"assets/index.html": "<p>", "assets/css/a b.css": "a{}", "assets/same.html": "<p>",
			}
			if got := contents(t, d); !maps.Equal(got, files) {
				t.Errorf("fetched %q, want %q", got, files)
			}
			// The runtime's ETags are made of these: the same content has the same on every
			// node, other content another one.
			at := func(name string) time.Time {
				info, err := os.Stat(filepath.Join(d.Dir, "assets", name))
				if err != nil {
					t.Fatal(err)
				}
				return info.ModTime()
			}
			if got, want := at("index.html").UTC().Format(time.RFC3339Nano), timeOf(t, "<p>"); got != want || !at("same.html").Equal(at("index.html")) || at("css/a b.css").Equal(at("index.html")) {
				t.Errorf("times %s, want %s, %v, %v", got, want, at("same.html"), at("css/a b.css"))
			}
			if d.Version != v || d.Main != "index.js" || string(d.Vars["A"]) != `"x"` || d.Assets.Files != 3 || d.Assets.Bytes != 9 {
				t.Errorf("manifest %+v", d.Manifest)
			}
			if err := d.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
}

// timeOf is the time that an asset of this content gets: 2001 and as many nanoseconds
// as the first 64 bits of its digest say, less whole runs of 1e18.
func timeOf(t *testing.T, body string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(body))
	return time.Unix(1_000_000_000, 0).Add(time.Duration(binary.BigEndian.Uint64(sum[:8]) % 1_000_000_000_000_000_000)).UTC().Format(time.RFC3339Nano)
}

func TestCachedAssetsCostNoRequest(t *testing.T) {
	ctx := t.Context()
	b := fault.New(memory.New())
	if err := layout.Publish(ctx, b, bundle(t, "code", someAssets)); err != nil {
		t.Fatal(err)
	}
	p, _, err := layout.Load(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	o := layout.FetchOptions{Root: t.TempDir(), Assets: t.TempDir()}
	count := func() int {
		t.Helper()
		b.Reset()
		if _, err := layout.Fetch(ctx, b, p, o); err != nil {
			t.Fatal(err)
		}
		return b.Counts()[fault.Get]
	}
	// Manifest, two modules and index each time; two blobs the first time, or one
	// more when both paths of the same one ask at once.
	if first := count(); first < 6 || first > 7 {
		t.Errorf("the first fetch took %d reads", first)
	}
	if again := count(); again != 4 {
		t.Errorf("the second fetch took %d reads, want 4", again)
	}
	// A cached file that lost its end is fetched anew.
	css := layout.Digest([]byte("a{}"))
	if err := os.Truncate(filepath.Join(o.Assets, css), 1); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 5 {
		t.Errorf("the fetch after a loss took %d reads, want 5", n)
	}
}

// TestTimesOfAssets: the runtime makes ETags of them.
func TestTimesOfAssets(t *testing.T) {
	store := memory.New(memory.Files())
	publish := func(assets map[string]string) {
		t.Helper()
		if err := layout.Publish(t.Context(), store, bundle(t, "1", assets)); err != nil {
			t.Fatal(err)
		}
	}
	timeOf := func(cache, name string) int64 {
		t.Helper()
		p, _, err := layout.Load(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		d, err := layout.Fetch(t.Context(), store, p, layout.FetchOptions{Root: t.TempDir(), Assets: cache})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(d.Dir, layout.AssetsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime().UnixNano()
	}
	publish(map[string]string{"a": "one", "b": "one", "c": "two"})
	cache := t.TempDir()
	first := timeOf("", "a")
	for what, got := range map[string]int64{"another path": timeOf("", "b"), "through a cache": timeOf(cache, "a"), "from the cache": timeOf(cache, "a")} {
		if got != first {
			t.Errorf("%s: %d, want %d", what, got, first)
		}
	}
	if timeOf("", "c") == first {
		t.Error("other content has the same time")
	}
	publish(map[string]string{"a": "two"}) // of the same size
	if timeOf(cache, "a") == first {
		t.Error("changed content has the same time")
	}
	// A cache that was filled before is put right.
	publish(map[string]string{"a": "one"})
	if err := os.Chtimes(filepath.Join(cache, layout.Digest([]byte("one"))), start, start); err != nil {
		t.Fatal(err)
	}
	if got := timeOf(cache, "a"); got != first {
		t.Errorf("after an older cache: %d, want %d", got, first)
	}
}

var start = time.Unix(1, 0)

// A source map is no part of the version: the third and fourth are the same one.
func TestRequestsOfADeploy(t *testing.T) {
	b := fault.New(memory.New())
	publish := func(x *layout.Bundle) map[fault.Op]int {
		t.Helper()
		b.Reset()
		if err := layout.Publish(t.Context(), b, x); err != nil {
			t.Fatal(err)
		}
		return b.Counts()
	}
	for _, c := range []struct {
		what   string
		bundle *layout.Bundle
		want   map[fault.Op]int
	}{
		// Two modules, manifest, script's pointer; the pointer.
		{"first", bundle(t, "1", nil), map[fault.Op]int{fault.Get: 1, fault.Put: 4, fault.Create: 1}},
		{"second", bundle(t, "2", nil), map[fault.Op]int{fault.Get: 1, fault.Put: 4, fault.Replace: 1}},
		{"the same", bundle(t, "2", nil), map[fault.Op]int{fault.Get: 1, fault.Put: 4}},
		{"with assets", bundle(t, "2", someAssets), map[fault.Op]int{fault.Get: 1, fault.List: 1, fault.Put: 7, fault.Replace: 1}},
		{"with a source map", mapped(bundle(t, "4", nil), 100), map[fault.Op]int{fault.Get: 1, fault.Put: 5, fault.Replace: 1}},
		{"with the largest", mapped(bundle(t, "4", nil), layout.MaxSourceMap), map[fault.Op]int{fault.Get: 1, fault.Put: 5}},
		{"with one that is too large", mapped(bundle(t, "4", nil), layout.MaxSourceMap+1), map[fault.Op]int{fault.Get: 1, fault.Put: 4}},
		{"assets that are there", bundle(t, "3", someAssets), map[fault.Op]int{fault.Get: 1, fault.List: 1, fault.Put: 5, fault.Replace: 1}},
	} {
		got := publish(c.bundle)
		maps.DeleteFunc(got, func(_ fault.Op, n int) bool { return n == 0 })
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestOrder: whatever is written lies there before anything names it.
func TestOrder(t *testing.T) {
	b := fault.New(memory.New())
	x := bundle(t, "code", someAssets)
	if err := layout.Publish(t.Context(), b, x); err != nil {
		t.Fatal(err)
	}
	stage := func(key string) int {
		switch {
		case strings.HasPrefix(key, "deploy-blobs/"):
			return 1
		case strings.HasSuffix(key, "/manifest.json"):
			return 3
		case key == "deploy/app/current.json":
			return 4
		case key == "deploy/current.json":
			return 5
		}
		return 2
	}
	last := 0
	for _, c := range b.Calls() {
		if c.Op == fault.Get || c.Op == fault.List {
			continue
		}
		if s := stage(c.Key); s < last {
			t.Errorf("%s was written after stage %d", c.Key, last)
		} else {
			last = s
		}
	}
	if last != 5 {
		t.Errorf("ended with stage %d", last)
	}
}

// TestFaults lets every call of a deploy go wrong in every way. Afterwards the
// pointer names a deployment that is whole: the new one when the deploy said so,
// the old one when it failed, either when it said that it does not know.
func TestFaults(t *testing.T) {
	old, fresh := bundle(t, "old", someAssets), bundle(t, "new", map[string]string{"other.html": "other"})
	for _, first := range []bool{true, false} {
		for _, kind := range []fault.Kind{fault.Unavailable, fault.Denied, fault.LostApplied, fault.LostNotApplied, fault.Refused, fault.CrashBefore, fault.CrashAfter} {
			for _, times := range []int{1, 0} {
				for n := 1; ; n++ {
					struck := false
					synctest.Test(t, func(t *testing.T) {
						ctx := t.Context()
						store := memory.New()
						if !first {
							if err := layout.Publish(ctx, store, old); err != nil {
								t.Fatal(err)
							}
						}
						f := fault.New(store)
						armed := f.Inject(fault.Rule{Kind: kind, Skip: n - 1, Times: times})
						err := layout.Publish(ctx, f, fresh)
						struck = armed.Hits() > 0
						name := fmt.Sprintf("first %v, kind %v from call %d, %d times: %v", first, kind, n, times, err)
						checkAfterFault(t, name, store, err, old, fresh, first)
						if times == 1 && err != nil && kind == fault.Unavailable && isWrite(f.Calls(), n) {
							t.Errorf("%s: one failed write was not tried again", name)
						}
						// The same again, without faults, always succeeds.
						if err := layout.Publish(ctx, store, fresh); err != nil {
							t.Errorf("%s: again: %v", name, err)
						}
						if d, err := fetch(ctx, t, store); err != nil || d.Version != fresh.Manifest.Version {
							t.Errorf("%s: again: fetched %v, %v", name, d, err)
						}
					})
					if !struck {
						break
					}
				}
			}
		}
	}
}

func isWrite(calls []fault.Call, n int) bool {
	for _, c := range calls {
		if c.Seq == n {
			return c.Op == fault.Put || c.Op == fault.Create || c.Op == fault.Replace
		}
	}
	return false
}

func checkAfterFault(t *testing.T, name string, store bucket.Bucket, err error, old, fresh *layout.Bundle, first bool) {
	t.Helper()
	d, fetchErr := fetch(t.Context(), t, store)
	got := ""
	switch {
	case fetchErr == nil:
		got = d.Version
	case !errors.Is(fetchErr, layout.ErrNoPointer):
		t.Errorf("%s: the pointer names what cannot be fetched: %v", name, fetchErr)
		return
	}
	before := old.Manifest.Version
	if first {
		before = ""
	}
	crashed := errors.Is(err, fault.ErrCrashed)
	switch {
	case err == nil && got != fresh.Manifest.Version:
		t.Errorf("%s: said yes, and %q is there", name, got)
	case err != nil && !crashed && !errors.Is(err, layout.ErrMayHaveCommitted) && got != before:
		t.Errorf("%s: said no, and %q is there", name, got)
	}
}

func TestRaces(t *testing.T) {
	ctx := t.Context()
	x, y := bundle(t, "x", nil), bundle(t, "y", nil)
	for _, there := range []bool{false, true} {
		store := memory.New(memory.ContentETags())
		if there {
			if err := layout.Publish(ctx, store, bundle(t, "old", nil)); err != nil {
				t.Fatal(err)
			}
		}
		f := fault.New(store)
		f.Inject(fault.Rule{Key: layout.ScriptKey("app"), Times: 1, After: func(ctx context.Context, _ fault.Call) {
			if err := layout.Publish(ctx, store, y); err != nil {
				t.Error(err)
			}
		}})
		err := layout.Publish(ctx, f, x)
		if !errors.Is(err, layout.ErrLostRace) || !strings.Contains(err.Error(), "run the deploy again") {
			t.Errorf("there %v: the loser got %v", there, err)
		}
		if p, _, err := layout.Load(ctx, store); err != nil || p.Version != y.Manifest.Version {
			t.Errorf("there %v: the pointer is %v, %v", there, p, err)
		}
		// Who wanted the same won as well.
		f = fault.New(store)
		f.Inject(fault.Rule{Key: layout.ScriptKey("app"), Times: 1, After: func(ctx context.Context, _ fault.Call) {
			if err := layout.Publish(ctx, store, x); err != nil {
				t.Error(err)
			}
		}})
		if err := layout.Publish(ctx, f, x); err != nil {
			t.Errorf("two deploys of the same: %v", err)
		}
	}
}

func TestDamageIsRefused(t *testing.T) {
	ctx := t.Context()
	x := bundle(t, "code", someAssets)
	prefix := layout.Prefix("app", x.Manifest.Version)
	manifest, _, err := x.Manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		key, body string // no body: removed
		want      error
	}{
		"module":           {prefix + "modules/index.js", "c0de", layout.ErrDigest},
		"longer module":    {prefix + "modules/index.js", "code ", layout.ErrDigest},
		"no module":        {prefix + "modules/index.js", "", bucket.ErrNotFound},
		"manifest":         {prefix + "manifest.json", string(manifest) + "\n", layout.ErrDigest},
		"another manifest": {prefix + "manifest.json", strings.Replace(string(manifest), `"x"`, `"y"`, 1), layout.ErrDigest},
		"no manifest":      {prefix + "manifest.json", "", bucket.ErrNotFound},
		"index":            {prefix + "assets.json", "[]", layout.ErrDigest},
		"blob":             {layout.BlobKey(layout.Digest([]byte("<p>"))), "<b>", layout.ErrDigest},
		"no blob":          {layout.BlobKey(layout.Digest([]byte("<p>"))), "", bucket.ErrNotFound},
		"pointer":          {layout.PointerKey, "{", layout.ErrPointer},
		"empty pointer":    {layout.PointerKey, "{}", layout.ErrPointer},
		"escaping pointer": {layout.PointerKey, `{"script_name":"app","version":"` + x.Manifest.Version + `","prefix":"../other/"}`, layout.ErrPointer},
		"unknown version":  {layout.PointerKey, `{"script_name":"app","version":"0123456789abcdef","prefix":"deploy/app/0123456789abcdef/"}`, bucket.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New()
			if err := layout.Publish(ctx, b, x); err != nil {
				t.Fatal(err)
			}
			if c.body == "" {
				err = b.Delete(ctx, c.key)
			} else {
				_, err = b.Put(ctx, c.key, []byte(c.body))
			}
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			p, _, err := layout.Load(ctx, b)
			if err == nil {
				_, err = layout.Fetch(ctx, b, p, layout.FetchOptions{Root: root})
			}
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			// To deploy again mends it, but for a blob of the same size, which no
			// deploy reads.
			if name == "blob" {
				return
			}
			if err := layout.Publish(ctx, b, x); err != nil {
				t.Fatal(err)
			}
			if _, err := fetch(ctx, t, b); err != nil {
				t.Errorf("after another deploy: %v", err)
			}
		})
	}
}

func TestHostileIndexAndManifest(t *testing.T) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		change func(*layout.Bundle)
	}{
		"asset above":    {func(b *layout.Bundle) { b.Assets[0].Path = "../../escape" }},
		"absolute asset": {func(b *layout.Bundle) { b.Assets[0].Path = "/escape" }},
		"no digest":      {func(b *layout.Bundle) { b.Assets[0].SHA256 = "../../x" }},
		"huge asset":     {func(b *layout.Bundle) { b.Assets[0].Bytes = layout.MaxAssetBytes + 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			x := bundle(t, "code", map[string]string{"a": "b"})
			b := memory.New()
			if err := layout.Publish(ctx, b, x); err != nil {
				t.Fatal(err)
			}
			c.change(x)
			// Published by hand, as somebody who may write the bucket could.
			if err := x.Seal(); err != nil {
				t.Fatal(err)
			}
			index, err := json.Marshal([]layout.Asset{x.Assets[0].Asset})
			if err != nil {
				t.Fatal(err)
			}
			manifest, version, err := x.Manifest.Encode()
			if err != nil {
				t.Fatal(err)
			}
			prefix := layout.Prefix("app", version)
			for key, body := range map[string][]byte{"manifest.json": manifest, "assets.json": index, "modules/index.js": []byte("code"), "modules/dir/t.txt": []byte("text")} {
				if _, err := b.Put(ctx, prefix+key, body); err != nil {
					t.Fatal(err)
				}
			}
			root := t.TempDir()
			if _, err := layout.Fetch(ctx, b, x.Pointer(), layout.FetchOptions{Root: root}); err == nil || !strings.Contains(err.Error(), "a file that cannot be") {
				t.Errorf("got %v", err)
			}
			if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
	for name, change := range map[string]func(*layout.Manifest){
		"newer format": func(m *layout.Manifest) { m.V = layout.ManifestVersion + 1 },
		"no format":    func(m *layout.Manifest) { m.V = 0 },
		"no main":      func(m *layout.Manifest) { m.Main = "other.js" },
		"nothing":      func(m *layout.Manifest) { m.Main, m.Modules = "", nil },
		"module above": func(m *layout.Manifest) { m.Modules[0].Name = "../x"; m.Main = "../x" },
	} {
		m := *bundle(t, "code", nil).Manifest
		m.Modules = slices.Clone(m.Modules)
		change(&m)
		body, version, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		b := memory.New()
		prefix := layout.Prefix("app", version)
		if _, err := b.Put(ctx, prefix+"manifest.json", body); err != nil {
			t.Fatal(err)
		}
		p := layout.Pointer{ScriptName: "app", Version: version, Prefix: prefix}
		if _, err := layout.Fetch(ctx, b, p, layout.FetchOptions{Root: t.TempDir()}); err == nil || bucket.KindOf(err) != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"index.js": true, "a/b c/ü.txt": true, strings.Repeat("a", 200): true, strings.Repeat("a", 201): false, "": false, ".": false, "../a": false,
		"a//b": false, "/a": false, "a\\b": false, "a\nb": false, strings.Repeat("a/", 256) + "a": false,
	} {
		if got := layout.ValidModuleName(name) == nil; got != want {
			t.Errorf("module name %q: %v", name, got)
		}
		if want {
			if err := bucket.CheckKey(layout.Prefix(strings.Repeat("s", 63), "0123456789abcdef") + "modules/" + name); err != nil {
				t.Errorf("module name %q makes no key: %v", name, err)
			}
		}
	}
	for name, want := range map[string]bool{"a": true, "my_app-2": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "-a": false, "a.b": false, "": false, "a/b": false} {
		if layout.ValidScript(name) != want {
			t.Errorf("script name %q is not %v", name, want)
		}
	}
}

// mapped gives a bundle a source map of that many bytes.
func mapped(b *layout.Bundle, bytes int) *layout.Bundle {
	b.SourceMap = make([]byte, bytes)
	return b
}
