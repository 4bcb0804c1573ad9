package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/scafo/scafo"
)

func writeFile(t testing.TB, dir, name, content string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// entry is one member of an archive that a test writes.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func dir(name string) entry { return entry{tar.Header{Typeflag: tar.TypeDir, Name: name}, ""} }

func link(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, ""}
}

func hard(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

func special(name string, flag byte) entry {
	return entry{tar.Header{Typeflag: flag, Name: name}, ""}
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte, o ...zstd.EOption) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, o...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// tree is what lies in a directory: contents of files, "dir/", "-> target".
func tree(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			out[name] = "dir/"
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out[name] = "-> " + target
		default:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[name] = string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unpack unpacks beside a secret and checks that nothing outside was touched.
func unpack(t testing.TB, b []byte, l Limits) (map[string]string, Unpacked, error) {
	t.Helper()
	outside := t.TempDir()
	writeFile(t, outside, "secret", "s3cret")
	inside := filepath.Join(outside, "a", "b")
	if err := os.MkdirAll(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	u, err := Unpack(t.Context(), bytes.NewReader(b), inside, l)
	got := tree(t, inside)
	all := tree(t, outside)
	for name := range all {
		if name != "secret" && name != "a" && name != "a/b" && !strings.HasPrefix(name, "a/b/") {
			t.Errorf("%s appeared outside", name)
		}
	}
	if all["secret"] != "s3cret" {
		t.Errorf("the secret became %q", all["secret"])
	}
	for name := range got {
		// Whatever is there and can be read resolves inside.
		if real, err := filepath.EvalSymlinks(filepath.Join(inside, name)); err == nil && real != inside && !strings.HasPrefix(real, inside+"/") {
			t.Errorf("%s resolves to %s", name, real)
		}
	}
	return got, u, err
}

func TestUnpackHonest(t *testing.T) {
	apple := string(appleDouble) + "\x00\x02\x00\x00Mac OS X"
	for name, c := range map[string]struct {
		entries []entry
		want    map[string]string
	}{
		"plain": {
			[]entry{file("wrangler.jsonc", "{}"), dir("src/"), file("src/index.ts", "x")},
			map[string]string{"wrangler.jsonc": "{}", "src": "dir/", "src/index.ts": "x"},
		},
		"no directories": {
			[]entry{file("a/b/c/d", "x"), file("a/b/e", ""), file("a/f", "y")},
			map[string]string{"a": "dir/", "a/b": "dir/", "a/b/c": "dir/", "a/b/c/d": "x", "a/b/e": "", "a/f": "y"},
		},
		"GNU tar's ./": {
			[]entry{dir("./"), file("./wrangler.jsonc", "{}"), dir("./src/"), file("./src//./index.ts", "x"), dir("./src")},
			map[string]string{"wrangler.jsonc": "{}", "src": "dir/", "src/index.ts": "x"},
		},
		"macOS companions": {
			[]entry{file("._wrangler.jsonc", apple), file("wrangler.jsonc", "{}"), file("./src/._index.ts", apple), file("._mine", "text"), file("._", "")},
			map[string]string{"wrangler.jsonc": "{}", "src": "dir/", "._mine": "text", "._": ""},
		},
		"pax": {
			[]entry{
				{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "c0ffee"}}, ""},
				{tar.Header{Typeflag: tar.TypeReg, Name: "wrangler.jsonc", PAXRecords: map[string]string{"SCHILY.xattr.com.apple.quarantine": "q", "LIBARCHIVE.creationtime": "1"}}, "{}"},
				file(strings.Repeat("long/", 60)+"ü", "x"),
			},
			func() map[string]string {
				m := map[string]string{"wrangler.jsonc": "{}", strings.Repeat("long/", 60) + "ü": "x"}
				for i := 1; i <= 60; i++ {
					m[strings.TrimSuffix(strings.Repeat("long/", i), "/")] = "dir/"
				}
				return m
			}(),
		},
		"inner links": {
			[]entry{
				file("lib/a.js", "a"), link("lib/b.js", "a.js"), link("c.js", "./lib//a.js"), link("x/y/up.js", "../../lib/a.js"),
				hard("lib/d.js", "./lib/a.js"), link("dangling", "nowhere"), link("here", "."), link("x/root", ".."), link("loop", "loop"),
			},
			map[string]string{
				"lib": "dir/", "lib/a.js": "a", "lib/b.js": "-> a.js", "c.js": "-> ./lib//a.js", "x": "dir/", "x/y": "dir/",
				"x/y/up.js": "-> ../../lib/a.js", "lib/d.js": "a", "dangling": "-> nowhere", "here": "-> .", "x/root": "-> ..", "loop": "-> loop",
			},
		},
	} {
		plain := archive(t, c.entries...)
		for format, b := range map[Format][]byte{Tar: plain, Gzip: gzipped(t, plain), Zstd: zstded(t, plain)} {
			if Detect(b) != format {
				t.Errorf("%s: %s was taken for %s", name, format, Detect(b))
			}
			got, _, err := unpack(t, b, wide)
			if err != nil || !maps.Equal(got, c.want) {
				t.Errorf("%s, %s: %v\ngot  %q\nwant %q", name, format, err, got, c.want)
			}
		}
	}
}

func TestUnpackModes(t *testing.T) {
	b := archive(t,
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "plain", Mode: 0o000}, ""},
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "program", Mode: 0o6777}, ""},
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "dir", Mode: 0o000}, ""},
		file("dir/in", "x"))
	d := t.TempDir()
	if _, err := Unpack(t.Context(), bytes.NewReader(b), d, wide); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"plain": 0o644, "program": 0o755, "dir": fs.ModeDir | 0o755} {
		info, err := os.Lstat(filepath.Join(d, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
}

func TestUnpackHostile(t *testing.T) {
	long := strings.Repeat("x", maxSegment+1)
	for name, c := range map[string]struct {
		entries []entry
		names   string // what the refusal names
		rule    string
	}{
		"absolute path":               {[]entry{file("/etc/passwd", "x")}, `"/etc/passwd"`, "absolute"},
		"absolute directory":          {[]entry{dir("/")}, `"/"`, "absolute"},
		"parent":                      {[]entry{file("../secret", "x")}, `"../secret"`, "parent"},
		"parent inside":               {[]entry{file("a/../../../secret", "x")}, `"a/../../../secret"`, "parent"},
		"parent that stays":           {[]entry{file("a/../b", "x")}, `"a/../b"`, "parent"},
		"parent alone":                {[]entry{dir("..")}, `".."`, "parent"},
		"parent after ./":             {[]entry{file("./../secret", "x")}, `"./../secret"`, "parent"},
		"link out":                    {[]entry{link("l", "../../secret")}, `"l"`, "out of the archive"},
		"link to root":                {[]entry{link("l", "/etc")}, `"l"`, "absolute"},
		"link out from below":         {[]entry{link("a/l", "../../b")}, `"a/l"`, "out of the archive"},
		"link and its name":           {[]entry{link("l", "a"), file("l", "x")}, `"l"`, "twice"},
		"link and its name, ./":       {[]entry{link("l", "a"), file("./l", "x")}, `"l"`, "twice"},
		"link and a directory":        {[]entry{link("l", "."), dir("l")}, `"l"`, "twice"},
		"through a link":              {[]entry{link("l", "."), file("l/x", "x")}, `"l/x"`, "behind a link"},
		"through a dangling link":     {[]entry{link("l", "a"), file("l/x", "x")}, `"l/x"`, "behind a link"},
		"link chain":                  {[]entry{file("a/b/c/f", ""), link("a/b/c/up", "../../.."), link("out", "a/b/c/up/../../secret")}, `"out"`, "climbs behind a name"},
		"link over a link":            {[]entry{link("l", "a"), link("l", "../..")}, `"l"`, ""},
		"link without a target":       {[]entry{link("l", "")}, `"l"`, "without a target"},
		"hard link out":               {[]entry{hard("h", "../../secret")}, `"h"`, "out of the archive"},
		"hard link absolute":          {[]entry{hard("h", "/etc/passwd")}, `"h"`, "out of the archive"},
		"hard link to nothing":        {[]entry{hard("h", "later"), file("later", "x")}, `"h"`, "no file that came before"},
		"hard link to a link":         {[]entry{link("l", "a"), hard("h", "l")}, `"h"`, "no file that came before"},
		"hard link behind a link":     {[]entry{file("a/f", "x"), link("l", "a"), hard("h", "l/f")}, `"h"`, "no file that came before"},
		"hard link to a directory":    {[]entry{dir("d"), hard("h", "d")}, `"h"`, "no file that came before"},
		"hard link to itself":         {[]entry{hard("h", "h")}, `"h"`, "no file that came before"},
		"hard link, then its name":    {[]entry{file("f", "x"), hard("h", "f"), file("h", "y")}, `"h"`, "twice"},
		"pax linkpath":                {[]entry{{tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("../", 50) + "secret"}, ""}}, `"l"`, "out of the archive"},
		"pax path":                    {[]entry{file("../"+strings.Repeat("é", 100), "x")}, `"../é`, "parent"},
		"character device":            {[]entry{special("null", tar.TypeChar)}, `"null"`, "device"},
		"block device":                {[]entry{special("sda", tar.TypeBlock)}, `"sda"`, "device"},
		"FIFO":                        {[]entry{special("pipe", tar.TypeFifo)}, `"pipe"`, "FIFO"},
		"contiguous file":             {[]entry{special("c", tar.TypeCont)}, `"c"`, "kind"},
		"file twice":                  {[]entry{file("f", "x"), file("f", "x")}, `"f"`, "twice"},
		"file twice, spelled anew":    {[]entry{file("a/f", "x"), file("./a//f", "x")}, `"a/f"`, "twice"},
		"file and directory":          {[]entry{file("f", "x"), dir("f/")}, `"f"`, "twice"},
		"directory and file":          {[]entry{dir("d/"), file("d", "x")}, `"d"`, "twice"},
		"file below a file":           {[]entry{file("f", "x"), file("f/g", "x")}, `"f/g"`, "no directory"},
		"no name":                     {[]entry{file("./.", "x")}, `"./."`, "no name"},
		"name too long":               {[]entry{file(long, "x")}, `"xxx`, "too long"},
		"path too long":               {[]entry{file(strings.Repeat("d/", maxPath/2+1)+"f", "x")}, `"d/d/`, "too long"},
		"name that is not UTF-8":      {[]entry{file("a\xffb", "x")}, "\"a\ufffdb\"", "UTF-8"},
		"global header with a path":   {[]entry{{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"path": "../x"}}, ""}}, `"path"`, "global header"},
		"global header with a target": {[]entry{{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"linkpath": "/etc"}}, ""}}, `"linkpath"`, "global header"},
	} {
		_, _, err := unpack(t, archive(t, c.entries...), Limits{Bytes: 1 << 20, Entries: 5000})
		if scafo.CodeOf(err) != scafo.CodeInvalidInput || !strings.Contains(err.Error(), c.names) || !strings.Contains(err.Error(), c.rule) {
			t.Errorf("%s: %v, want it to name %s and say %q", name, err, c.names, c.rule)
		}
	}
}

// A NUL can only come in a pax record, which archive/tar refuses to write.
func TestUnpackNUL(t *testing.T) {
	for _, c := range []struct{ key, typeflag string }{{"path", "0"}, {"linkpath", "2"}} {
		b := archive(t, entry{tar.Header{Typeflag: tar.TypeReg, Name: "é", Linkname: "", PAXRecords: map[string]string{"zz.x": "1"}}, ""})
		record := fmt.Sprintf("%d %s=a\x00b\n", len("00 =a\x00b\n")+len(c.key), c.key)
		body := make([]byte, 512)
		copy(body, record)
		copy(b[512:1024], body)
		// The size of the record is in the pax header's size field, octal.
		copy(b[124:136], fmt.Sprintf("%011o\x00", len(record)))
		checksum(b[:512])
		b[1024+156] = c.typeflag[0]
		checksum(b[1024:1536])
		if _, _, err := unpack(t, b, wide); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s: %v", c.key, err)
		}
	}
}

// checksum corrects the checksum of a tar header.
func checksum(h []byte) {
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func TestUnpackLimits(t *testing.T) {
	three := []entry{file("a", "1"), dir("d"), file("d/b", "23")}
	size := int64(len(archive(t, three...)))
	for name, c := range map[string]struct {
		entries []entry
		pack    func([]byte) []byte
		l       Limits
		code    scafo.Code
	}{
		"entries":                  {three, nil, Limits{Bytes: 1 << 20, Entries: 3}, ""},
		"entries and one":          {three, nil, Limits{Bytes: 1 << 20, Entries: 2}, scafo.CodeResourceLimit},
		"implied directories":      {[]entry{file("a/b/c", "")}, nil, Limits{Bytes: 1 << 20, Entries: 3}, ""},
		"implied directories, one": {[]entry{file("a/b/c", "")}, nil, Limits{Bytes: 1 << 20, Entries: 2}, scafo.CodeResourceLimit},
		"companions count":         {[]entry{file("._a", string(appleDouble)), file("b", "")}, nil, Limits{Bytes: 1 << 20, Entries: 1}, scafo.CodeResourceLimit},
		"expanded":                 {three, func(b []byte) []byte { return gzipped(t, b) }, Limits{Bytes: size, Entries: 9}, ""},
		"expanded and one":         {three, func(b []byte) []byte { return gzipped(t, b) }, Limits{Bytes: size - 1, Entries: 9}, scafo.CodeResourceLimit},
		"bomb, gzip": {
			[]entry{file("zeros", strings.Repeat("\x00", 8<<20))},
			func(b []byte) []byte { return gzipped(t, b) },
			Limits{Bytes: 1 << 20, Entries: 9},
			scafo.CodeResourceLimit,
		},
		"bomb behind the end": {
			three,
			func(b []byte) []byte { return zstded(t, append(b, make([]byte, 8<<20)...)) },
			Limits{Bytes: 1 << 20, Entries: 9},
			scafo.CodeResourceLimit,
		},
	} {
		b := archive(t, c.entries...)
		if c.pack != nil {
			b = c.pack(b)
		}
		if _, _, err := unpack(t, b, c.l); scafo.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", name, err, c.code)
		}
	}
}

// A header may claim any size: nothing is reserved for it, and nothing is read
// beyond what was sent.
func TestUnpackLyingSizes(t *testing.T) {
	huge := archive(t, file("f", "abc"))
	copy(huge[124:136], fmt.Sprintf("%011o\x00", int64(8<<30)-1))
	checksum(huge[:512])
	if _, _, err := unpack(t, huge, wide); scafo.CodeOf(err) != scafo.CodeResourceLimit {
		t.Errorf("a header that claims 8 GiB: %v", err)
	}
	more := archive(t, file("f", "abc"))[:1024]
	copy(more[124:136], fmt.Sprintf("%011o\x00", 4096))
	checksum(more[:512])
	if _, _, err := unpack(t, more, wide); scafo.CodeOf(err) != scafo.CodeInvalidInput || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("a header that claims more than there is: %v", err)
	}
	// A sparse file of 8 GiB in one block (GNU's old format).
	sparse := archive(t, file("f", strings.Repeat("x", 512)))
	sparse[156] = 'S'
	copy(sparse[257:265], "ustar  \x00")
	copy(sparse[386:398], fmt.Sprintf("%011o\x00", 0))
	copy(sparse[398:410], fmt.Sprintf("%011o\x00", 512))
	copy(sparse[483:495], fmt.Sprintf("%011o\x00", int64(8<<30)-1))
	checksum(sparse[:512])
	if _, _, err := unpack(t, sparse, wide); scafo.CodeOf(err) != scafo.CodeResourceLimit {
		t.Errorf("a sparse file of 8 GiB: %v", err)
	}
}

func TestUnpackBroken(t *testing.T) {
	whole := archive(t, file("f", strings.Repeat("abc", 1000)))
	noise := []byte(strings.Repeat("no archive at all. ", 100))
	for name, b := range map[string][]byte{
		"noise":                     noise,
		"gzip of noise":             gzipped(t, noise),
		"zip":                       append([]byte("PK\x03\x04"), noise...),
		"truncated tar":             whole[:1000],
		"tar without its end":       whole[:512+3072],
		"nothing":                   {},
		"truncated gzip":            gzipped(t, whole)[:30],
		"gzip without its checksum": func() []byte { z := gzipped(t, whole); return z[:len(z)-8] }(),
		"gzip with another checksum": func() []byte {
			z := gzipped(t, whole)
			z[len(z)-5] ^= 1
			return z
		}(),
		"truncated zstd":     zstded(t, whole)[:30],
		"gzip header alone":  {0x1f, 0x8b},
		"zstd header alone":  {0x28, 0xb5, 0x2f, 0xfd},
		"a wide zstd window": wideWindow(t),
	} {
		if _, _, err := unpack(t, b, Limits{Bytes: 64 << 20, Entries: 10}); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What has no entries is no error here: it has no configuration.
	if got, _, err := unpack(t, archive(t), wide); err != nil || len(got) != 0 {
		t.Errorf("an empty archive: %v, %v", got, err)
	}
}

func wideWindow(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(2*maxWindow))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 3*maxWindow)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpackStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Unpack(ctx, bytes.NewReader(archive(t, file("f", "x"))), t.TempDir(), wide); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	overloaded := scafo.Errorf(scafo.CodeDeployOverloaded, "no room")
	l := wide
	l.Take = func(int64) error { return overloaded }
	if _, err := Unpack(t.Context(), bytes.NewReader(archive(t, file("f", "x"))), t.TempDir(), l); !errors.Is(err, overloaded) {
		t.Errorf("without room: %v", err)
	}
}

func TestUnpackMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 50 MB")
	}
	b := gzipped(t, archive(t, file("f", strings.Repeat("0123456789abcdef", 50<<20/16))))
	d := t.TempDir()
	var peak uint64
	allocs := testing.Benchmark(func(bm *testing.B) {
		bm.ReportAllocs()
		for bm.Loop() {
			if err := os.RemoveAll(filepath.Join(d, "f")); err != nil {
				bm.Fatal(err)
			}
			if _, err := Unpack(context.Background(), bytes.NewReader(b), d, Limits{Bytes: 64 << 20, Entries: 9}); err != nil {
				bm.Fatal(err)
			}
		}
	})
	peak = uint64(allocs.AllocedBytesPerOp())
	const most = 1 << 20
	if peak > most {
		t.Errorf("unpacking 50 MB allocates %d bytes, want at most %d", peak, most)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, file("./wrangler.jsonc", "{}"), dir("a/"), link("a/l", "../wrangler.jsonc"), hard("h", "wrangler.jsonc")))
	f.Add(gzipped(f, archive(f, file("../x", "x"))))
	f.Add(zstded(f, archive(f, link("l", "."), file("l/x", "x"))))
	f.Add(archive(f, special("p", tar.TypeFifo)))
	f.Add(archive(f, file(strings.Repeat("long/", 60)+"é", "x"), entry{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}, ""}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := Limits{Bytes: 1 << 20, Entries: 20}
		got, u, err := unpack(t, b, l)
		if err != nil {
			if code := scafo.CodeOf(err); code != scafo.CodeInvalidInput && code != scafo.CodeResourceLimit {
				t.Fatalf("%v", err)
			}
		}
		if u.Bytes > l.Bytes || u.Entries > l.Entries || len(got) > l.Entries {
			t.Fatalf("%+v and %d names are beyond the bounds", u, len(got))
		}
	})
}
