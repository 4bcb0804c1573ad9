package storage

import (
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
)

func TestKeysThatAreRefused(t *testing.T) {
	for name, s := range map[string]string{
		"empty":         "",
		"absolute":      "/a",
		"empty segment": "a//b",
		"ends so":       "a/",
		"dot":           "a/./b",
		"dots":          "a/../b",
		"only dots":     "..",
		"begins so":     "../a",
		"newline":       "a\nb",
		"nul":           "a\x00",
		"delete":        "a\x7f",
		"not ASCII":     "é",
		"too long":      strings.Repeat("a", MaxEncodedKey),
		"too long so":   strings.Repeat(" ", MaxEncodedKey/3),
	} {
		if _, err := ParseKey(s); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s: %q is %v, want invalid-input", name, s, err)
		}
		if s == "a/" {
			continue // a prefix may end with a slash
		}
		if _, err := ParsePrefix(s); s != "" && scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s as a prefix: %q is %v, want invalid-input", name, s, err)
		}
	}
	for _, path := range []string{"a%2F..%2Fb", "a%2Fb", "%2Fa", "a/%2e%2e/b", "a/%2E", "%00", "a%0Ab", "%C3%A9", "a%", "a%zz", "a%2F", "", "a//b", "/a", "a/"} {
		if k, err := ParsePath(path); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("the path %q is the key %q, want invalid-input", path, k)
		}
	}
}

func TestKeysAreSpelledBack(t *testing.T) {
	host := strings.Repeat("a.", 126) + "b" // 253 characters
	for path, want := range map[string]string{
		"a":          "a",
		"a/b.crt":    "a/b.crt",
		"a%20b/c":    "a b/c",
		"a+b":        "a+b",
		"%61":        "a",
		"...":        "...",
		".hidden/.x": ".hidden/.x",
		"100%25":     "100%",
		"a!b/!-":     "a!b/!-",
		"a%3Fb%23":   "a?b#",
		"certificates/acme-v02.api.letsencrypt.org-directory/" + host + "/" + host + ".crt": "certificates/acme-v02.api.letsencrypt.org-directory/" + host + "/" + host + ".crt",
	} {
		k, err := ParsePath(path)
		if err != nil || k.String() != want {
			t.Errorf("the path %q is the key %q, %v; want %q", path, k, err, want)
		}
		if back, ok := decode(strings.TrimPrefix(k.object(), ObjectPrefix)); !ok || back != want {
			t.Errorf("%s reads back as %q, %v", k.object(), back, ok)
		}
	}
}

func TestKeyInTheBucket(t *testing.T) {
	for key, want := range map[string]string{
		"a/b.crt": "_scafo/storage/objects/a/b.crt!.json",
		".a b":    "_scafo/storage/objects/!2Ea!20b!.json",
		"!":       "_scafo/storage/objects/!21!.json",
	} {
		k, err := ParseKey(key)
		if err != nil || k.object() != want {
			t.Errorf("%q is kept as %s, %v; want %s", key, k.object(), err, want)
		}
	}
	k, err := ParseKey(strings.Repeat("x", 181))
	if want := "_scafo/storage/locks/" + strings.Repeat("x", 180) + "!-/x!.json"; err != nil || k.lock() != want {
		t.Errorf("a long lock is kept as %s, want %s", k.lock(), want)
	}
}

func TestWhatNobodyWroteIsNoKey(t *testing.T) {
	for _, object := range []string{"", "a", "a.json", "!.json", "a!.json/b", "a!2!.json", "a!2g!.json", "!61!.json", "a!2f!.json", "a!-!.json", "a!-/b!.json", ".!.json", "a//b!.json"} {
		if k, ok := decode(object); ok {
			t.Errorf("%q is the key %q", object, k)
		}
	}
}

// keys draws keys with what is hard about them: short ones that are each other's
// parents, long segments, dots and signs.
func keys() *rapid.Generator[string] {
	segment := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "b", "ab", "a-", "a!", "a.json", "a!.json", "!-", "...", ".a", "-", "~", " ", "0"}),
		rapid.StringMatching(`[!-.0-~]{1,4}`).Filter(func(s string) bool { return s != "." && s != ".." }),
		rapid.Map(rapid.IntRange(178, 185), func(n int) string { return strings.Repeat("x", n) }),
	)
	return rapid.Map(rapid.SliceOfN(segment, 1, 4), func(s []string) string { return strings.Join(s, "/") })
}

func TestKeysRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, other := keys().Draw(t, "key"), keys().Draw(t, "other")
		k, err := ParseKey(s)
		if err != nil {
			t.Fatal(err)
		}
		checkKept(t, k)
		o, err := ParseKey(other)
		if err != nil {
			t.Fatal(err)
		}
		if (k.object() == o.object()) != (s == other) {
			t.Fatalf("%q and %q are kept as %s and %s", s, other, k.object(), o.object())
		}
		// What is beneath here is beneath there, and nothing is an object and a folder.
		if strings.HasPrefix(other, s+"/") != strings.HasPrefix(o.object(), k.beneath()) {
			t.Fatalf("%q and %q are kept as %s and %s", s, other, k.beneath(), o.object())
		}
		if strings.HasPrefix(o.object(), k.object()+"/") {
			t.Fatalf("%s is a folder of %s", k.object(), o.object())
		}
	})
}

type fataler interface{ Fatalf(string, ...any) }

func checkKept(t fataler, k Key) {
	for _, at := range []string{k.object(), k.lock()} {
		if err := bucket.CheckKey(at); err != nil {
			t.Fatalf("%q is kept as %s: %v", k, at, err)
		}
		for s := range strings.SplitSeq(at, "/") {
			if len(s) >= 200 || s[0] == '.' {
				t.Fatalf("%q is kept as %s, which has the segment %s", k, at, s)
			}
		}
	}
	if back, ok := decode(strings.TrimPrefix(k.object(), ObjectPrefix)); !ok || back != k.text {
		t.Fatalf("%q reads back as %q, %v", k, back, ok)
	}
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"a/b", "a%2F..%2Fb", "%", "..", "a%20b", strings.Repeat("x", 200), "!-/!.json", "a//b", "/", "%2e%2E"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		k, err := ParsePath(path)
		if err != nil {
			if scafo.CodeOf(err) != scafo.CodeInvalidInput {
				t.Fatalf("%q: %v", path, err)
			}
			return
		}
		checkKept(t, k)
		if strings.Count(k.text, "/") != strings.Count(path, "/") {
			t.Fatalf("%q became %q, with other segments", path, k)
		}
		// Spelled in a canonical path, it is the same key.
		segments := strings.Split(k.text, "/")
		for i, s := range segments {
			if s == "" || s == "." || s == ".." {
				t.Fatalf("%q became %q", path, k)
			}
			segments[i] = url.PathEscape(s)
		}
		if again, err := ParsePath(strings.Join(segments, "/")); err != nil || again != k {
			t.Fatalf("%q: %q, %v", path, again, err)
		}
	})
}
