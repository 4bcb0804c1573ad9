package artifact

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/scafo/scafo"
)

// member is one header block and its content, written byte by byte: most of what
// stands here is what no library would write.
type member struct {
	name, link, prefix string
	flag               byte
	content            string
	size               string // the size field as it is; empty: that of content
	mode               string // the mode field as it is; empty: 0644
	magic              string // empty: ustar's
	alter              func(h []byte)
	sum                string // the checksum field as it is; empty: the right one
}

func (m member) bytes() []byte {
	h := make([]byte, tarBlock)
	put := func(at, most int, s string) { copy(h[at:at+most], s) }
	or := func(s, other string) string {
		if s == "" {
			return other
		}
		return s
	}
	put(0, 100, m.name)
	put(100, 8, or(m.mode, "0000644\x00"))
	put(108, 8, "0000000\x00")
	put(116, 8, "0000000\x00")
	put(124, 12, or(m.size, fmt.Sprintf("%011o\x00", len(m.content))))
	put(136, 12, "00000000000\x00")
	h[156] = m.flag
	put(157, 100, m.link)
	put(257, 8, or(m.magic, "ustar\x0000"))
	put(345, 155, m.prefix)
	if m.alter != nil {
		m.alter(h)
	}
	checksum(h)
	if m.sum != "" {
		put(148, 8, m.sum)
	}
	return append(h, padded(m.content)...)
}

func padded(s string) string {
	return s + strings.Repeat("\x00", (tarBlock-len(s)%tarBlock)%tarBlock)
}

// record is one record of a pax header.
func record(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	n := len(rest) + 1
	for len(fmt.Sprint(n))+len(rest) != n {
		n = len(fmt.Sprint(n)) + len(rest)
	}
	return fmt.Sprint(n) + rest
}

func pax(records ...string) member {
	return member{name: "PaxHeaders/x", flag: 'x', content: strings.Join(records, "")}
}

func global(records ...string) member {
	return member{name: "pax_global_header", flag: 'g', content: strings.Join(records, "")}
}

func longName(name string) member {
	return member{name: "././@LongLink", flag: 'L', magic: "ustar  \x00", content: name + "\x00"}
}

func longLink(target string) member {
	return member{name: "././@LongLink", flag: 'K', magic: "ustar  \x00", content: target + "\x00"}
}

func regular(name, content string) member { return member{name: name, flag: '0', content: content} }

func folder(name string) member { return member{name: name, flag: '5', mode: "0000755\x00"} }

func symbolic(name, target string) member { return member{name: name, flag: '2', link: target} }

func hardlink(name, target string) member { return member{name: name, flag: '1', link: target} }

func kind(name string, flag byte) member { return member{name: name, flag: flag} }

var tarEnd = make([]byte, 2*tarBlock)

func bare(members ...member) []byte {
	var b []byte
	for _, m := range members {
		b = append(b, m.bytes()...)
	}
	return b
}

func raw(members ...member) []byte { return append(bare(members...), tarEnd...) }

func binarySize(n int64) string {
	b := make([]byte, 12)
	binary.BigEndian.PutUint64(b[4:], uint64(n))
	b[0] |= 0x80
	return string(b)
}

func negativeSize() string { return strings.Repeat("\xff", 12) }

// strange is an archive, and what is to become of it.
type strange struct {
	what  string
	bytes []byte
	// in makes the archive where it names the folder around the staging folder.
	in func(outside string) []byte
	// want is what is there afterwards, where the archive is taken.
	want map[string]string
	// names and says are in the refusal, and code is its code (invalid-input where
	// it is empty).
	names, says string
	code        scafo.Code
}

// apple is a macOS companion.
var apple = string(appleDouble) + "\x00\x02\x00\x00Mac OS X        "

var oddities = []strange{
	{what: "plain", bytes: raw(regular("f", "x")), want: map[string]string{"f": "x"}},
	{what: "./ prefixes", bytes: raw(folder("./"), folder("./d/"), regular("./d/f", "x"), regular("././g", "y")), want: map[string]string{"d": "dir/", "d/f": "x", "g": "y"}},
	{what: "doubled slashes", bytes: raw(regular("d//f", "x")), want: map[string]string{"d": "dir/", "d/f": "x"}},
	{what: "a folder as V7 wrote it", bytes: raw(member{name: "d/", flag: 0, magic: strings.Repeat("\x00", 8)}), want: map[string]string{"d": "dir/"}},
	{what: "a file as V7 wrote it", bytes: raw(member{name: "f", flag: 0, magic: strings.Repeat("\x00", 8), content: "x"}), want: map[string]string{"f": "x"}},
	{what: "macOS companions", bytes: raw(regular("._f", apple), regular("f", "x"), regular("d/._g", apple)), want: map[string]string{"f": "x", "d": "dir/"}},
	{what: "a file that is only named as a companion", bytes: raw(regular("._f", "mine")), want: map[string]string{"._f": "mine"}},
	{what: "pax global header", bytes: raw(global(record("comment", "0123456789abcdef")), regular("f", "x")), want: map[string]string{"f": "x"}},
	{what: "two pax global headers", bytes: raw(global(record("comment", "a")), regular("f", "x"), global(record("comment", "b")), regular("g", "y")), want: map[string]string{"f": "x", "g": "y"}},
	{what: "pax records of others", bytes: raw(pax(record("SCHILY.xattr.user.a", "b"), record("LIBARCHIVE.creationtime", "1.5"), record("mtime", "-1.25")), regular("f", "x")), want: map[string]string{"f": "x"}},
	{what: "pax path", bytes: raw(pax(record("path", strings.Repeat("é", 80))), regular("short", "x")), want: map[string]string{strings.Repeat("é", 80): "x"}},
	{what: "pax linkpath", bytes: raw(regular("f", "x"), pax(record("linkpath", "./f")), symbolic("l", "elsewhere")), want: map[string]string{"f": "x", "l": "-> ./f"}},
	{what: "pax size", bytes: raw(pax(record("size", "3")), member{name: "f", flag: '0', size: "00000000003\x00", content: "abc"}), want: map[string]string{"f": "abc"}},
	{what: "pax header of nobody", bytes: raw(regular("f", "x"), pax(record("path", "../g"))), want: map[string]string{"f": "x"}},
	{what: "GNU's long name", bytes: raw(longName(strings.Repeat("n", 200)), regular("short", "x")), want: map[string]string{strings.Repeat("n", 200): "x"}},
	{what: "GNU's long target", bytes: raw(longLink(strings.Repeat("t", 200)), symbolic("l", "short")), want: map[string]string{"l": "-> " + strings.Repeat("t", 200)}},
	{what: "ustar's prefix", bytes: raw(member{name: "f", prefix: "a/b", flag: '0', content: "x"}), want: map[string]string{"a": "dir/", "a/b": "dir/", "a/b/f": "x"}},
	{what: "a name behind a NUL", bytes: raw(regular("f\x00/../../g", "x")), want: map[string]string{"f": "x"}},
	{what: "binary size", bytes: raw(member{name: "f", flag: '0', size: binarySize(1), content: "x"}), want: map[string]string{"f": "x"}},
	{what: "size with spaces", bytes: raw(member{name: "f", flag: '0', size: "          1 ", content: "x"}), want: map[string]string{"f": "x"}},
	{what: "modes of every kind", bytes: raw(member{name: "f", flag: '0', mode: "0006777\x00", content: "x"}, member{name: "g", flag: '0', mode: "0000000\x00"}), want: map[string]string{"f": "x", "g": ""}},
	{what: "a link with a size", bytes: raw(regular("f", "x"), member{name: "l", flag: '2', link: "f", size: "00000001000\x00"}), want: map[string]string{"f": "x", "l": "-> f"}},
	{what: "inner links", bytes: raw(regular("d/f", "x"), symbolic("d/l", "f"), symbolic("e/l", "../d/f"), hardlink("h", "./d/f")), want: map[string]string{"d": "dir/", "d/f": "x", "d/l": "-> f", "e": "dir/", "e/l": "-> ../d/f", "h": "x"}},
	{what: "a link to nothing", bytes: raw(symbolic("l", "nothing")), want: map[string]string{"l": "-> nothing"}},
	{what: "a repeated folder", bytes: raw(folder("d/"), regular("d/f", "x"), folder("d")), want: map[string]string{"d": "dir/", "d/f": "x"}},
	{what: "names that only look wrong", bytes: raw(regular("...", ""), regular("..a", ""), regular("a..", ""), regular("-rf", ""), regular("a\nb", ""), regular(" ", ""), regular("~", ""), regular("C:", "")), want: map[string]string{"...": "", "..a": "", "a..": "", "-rf": "", "a\nb": "", " ": "", "~": "", "C:": ""}},
	{what: "names that differ in case", bytes: raw(regular("f", "1"), regular("F", "2")), want: map[string]string{"f": "1", "F": "2"}},
	{what: "padding of a tape", bytes: append(raw(regular("f", "x")), make([]byte, 20*tarBlock)...), want: map[string]string{"f": "x"}},
	{what: "an archive behind the end", bytes: append(raw(regular("f", "x")), raw(regular("../g", "y"))...), want: map[string]string{"f": "x"}},
	{what: "no entry", bytes: tarEnd, want: map[string]string{}},
}

var hostile = []strange{
	{what: "absolute path", in: func(outside string) []byte { return raw(longName(outside+"/f"), regular("f", "x")) }, names: "archive entry", says: "absolute"},
	{what: "absolute path behind ./", in: func(outside string) []byte { return raw(longName("./"+outside+"/../../g"), regular("f", "x")) }, names: "/../../g", says: "parent"},
	{what: "parent", bytes: raw(regular("../secret", "x")), names: `"../secret"`, says: "parent"},
	{what: "parent of a folder", bytes: raw(folder("a/"), regular("a/../../secret", "x")), names: `"a/../../secret"`, says: "parent"},
	{what: "parent in the prefix", bytes: raw(member{name: "secret", prefix: "../..", flag: '0'}), names: `"../../secret"`, says: "parent"},
	{what: "parent in GNU's long name", bytes: raw(longName("../"+strings.Repeat("n", 100)), regular("f", "x")), names: `"../nnn`, says: "parent"},
	{what: "parent in a pax path", bytes: raw(pax(record("path", "../secret")), regular("f", "x")), names: `"../secret"`, says: "parent"},
	{what: "parent in the name of a pax sparse file", bytes: raw(pax(record("GNU.sparse.major", "1"), record("GNU.sparse.minor", "0"), record("GNU.sparse.name", "../secret"), record("GNU.sparse.realsize", "0")), regular("f", padded("0\n"))), names: `"../secret"`, says: "parent"},
	{what: "folder above", bytes: raw(folder("../d/")), names: `"../d/"`, says: "parent"},
	{what: "companion above", bytes: raw(regular("../._f", apple)), names: `"../._f"`, says: "parent"},
	{what: "backslashes", bytes: raw(regular(`..\secret`, "x")), names: `"..\\secret"`, says: "backslash"},
	{what: "a drive", bytes: raw(regular(`C:\windows\f`, "x")), names: `windows`, says: "backslash"},
	{what: "backslash at the end", bytes: raw(folder(`d\`)), names: `"d\\"`, says: "backslash"},
	{what: "backslashes in a target", bytes: raw(symbolic("l", `..\..\secret`)), names: `"l"`, says: "backslash"},
	{what: "link out", bytes: raw(symbolic("l", "../secret")), names: `"l"`, says: "out of the archive"},
	{what: "link out of a folder", bytes: raw(symbolic("a/b/l", "../../../secret")), names: `"a/b/l"`, says: "out of the archive"},
	{what: "link to an absolute path", in: func(outside string) []byte { return raw(longLink(outside), symbolic("l", "f")) }, names: `"l"`, says: "absolute"},
	{what: "link out by pax linkpath", bytes: raw(pax(record("linkpath", "../secret")), symbolic("l", "f")), names: `"l"`, says: "out of the archive"},
	{what: "link out by GNU's long target", bytes: raw(longLink("../secret"), symbolic("l", "f")), names: `"l"`, says: "out of the archive"},
	{what: "link to nowhere", bytes: raw(symbolic("l", "")), names: `"l"`, says: "without a target"},
	{what: "link that climbs behind a name", bytes: raw(folder("d"), symbolic("l", "d/../../secret")), names: `"l"`, says: "climbs"},
	{what: "link, then a file of its name", bytes: raw(symbolic("l", "f"), regular("l", "x")), names: `"l"`, says: "twice"},
	{what: "link, then a file behind it", bytes: raw(folder("d"), symbolic("l", "d"), regular("l/f", "x")), names: `"l/f"`, says: "behind a link"},
	{what: "link, then a folder of its name", bytes: raw(folder("d"), symbolic("l", "d"), folder("l/")), names: `"l`, says: "twice"},
	{what: "link, then a link behind it", bytes: raw(symbolic("l", "."), symbolic("l/m", "..")), names: `"l/m"`, says: "behind a link"},
	{what: "link, then a hard link of its name", bytes: raw(regular("f", "x"), symbolic("l", "f"), hardlink("l", "f")), names: `"l"`, says: "twice"},
	{what: "link over a file", bytes: raw(regular("f", "x"), symbolic("f", "g")), names: `"f"`, says: "twice"},
	{what: "two links that make a way out", bytes: raw(symbolic("a", "."), symbolic("b", "a/../../secret")), names: `"b"`, says: "climbs"},
	{what: "hard link out", bytes: raw(hardlink("h", "../secret")), names: `"h"`, says: "out of the archive"},
	{what: "hard link to an absolute path", in: func(outside string) []byte { return raw(longLink(outside+"/secret"), hardlink("h", "f")) }, names: `"h"`, says: "out of the archive"},
	{what: "hard link out by pax linkpath", bytes: raw(regular("f", "x"), pax(record("linkpath", "../../secret")), hardlink("h", "f")), names: `"h"`, says: "out of the archive"},
	{what: "hard link out, then a file of its name", bytes: raw(hardlink("h", "../secret"), regular("h", "x")), names: `"h"`, says: "out of the archive"},
	{what: "hard link to a link", bytes: raw(symbolic("l", "f"), hardlink("h", "l")), names: `"h"`, says: "no file that came before"},
	{what: "hard link behind a link", bytes: raw(regular("d/f", "x"), symbolic("l", "d"), hardlink("h", "l/f")), names: `"h"`, says: "no file that came before"},
	{what: "hard link to what comes later", bytes: raw(hardlink("h", "f"), regular("f", "x")), names: `"h"`, says: "no file that came before"},
	{what: "hard link to a folder", bytes: raw(folder("d"), hardlink("h", "d")), names: `"h"`, says: "no file that came before"},
	{what: "character device", bytes: raw(kind("null", '3')), names: `"null"`, says: "device"},
	{what: "block device", bytes: raw(kind("sda", '4')), names: `"sda"`, says: "device"},
	{what: "FIFO", bytes: raw(kind("pipe", '6')), names: `"pipe"`, says: "FIFO"},
	{what: "contiguous file", bytes: raw(kind("c", '7')), names: `"c"`, says: "kind"},
	{what: "volume label", bytes: raw(kind("v", 'V')), names: `"v"`, says: "kind"},
	{what: "part of another volume", bytes: raw(kind("m", 'M')), names: `"m"`, says: "kind"},
	{what: "unknown kind", bytes: raw(kind("z", 'Z')), names: `"z"`, says: "kind"},
	{what: "file as a folder", bytes: raw(regular("f", "x"), regular("f/g", "y")), names: `"f/g"`, says: "no directory"},
	{what: "folder over a file", bytes: raw(regular("f", "x"), folder("f/")), names: `"f`, says: "twice"},
	{what: "file over a folder", bytes: raw(folder("d/"), regular("d", "x")), names: `"d"`, says: "twice"},
	{what: "file twice", bytes: raw(regular("f", "1"), regular("f", "2")), names: `"f"`, says: "twice"},
	{what: "file twice, spelled anew", bytes: raw(regular("d/f", "1"), regular("./d//f", "2")), names: `"d/f"`, says: "twice"},
	{what: "configuration twice", bytes: raw(regular("wrangler.json", "{}"), regular("./wrangler.json", "{}")), names: `"wrangler.json"`, says: "twice"},
	{what: "NUL in a pax path", bytes: raw(regular("f", ""), pax(record("path", "a\x00b")), regular("g", "x")), names: `"f"`, says: "malformed"},
	{what: "NUL in a pax linkpath", bytes: raw(regular("f", ""), pax(record("linkpath", "a\x00b")), symbolic("l", "f")), names: `"f"`, says: "malformed"},
	{what: "no name", bytes: raw(regular("", "x")), names: `""`, says: "no name"},
	{what: "a file that is the root", bytes: raw(regular(".", "x")), names: `"."`, says: "no name"},
	{what: "a link that is the root", bytes: raw(symbolic("./", "..")), names: `"./"`, says: "no name"},
	{what: "a name that is not UTF-8", bytes: raw(regular("a\xc0\xafb", "x")), names: "\ufffd", says: "UTF-8"},
	{what: "a name that is too long", bytes: raw(longName(strings.Repeat("n", 256)), regular("f", "x")), names: `"nnn`, says: "too long"},
	{what: "a path that is too long", bytes: raw(longName(strings.Repeat("d/", 2048)+"f"), regular("f", "x")), names: `"d/d/`, says: "too long"},
	{what: "global header with a path", bytes: raw(global(record("path", "../g")), regular("f", "x")), names: `"path"`, says: "global header"},
	{what: "global header with a target", bytes: raw(global(record("linkpath", "../g")), symbolic("l", "f")), names: `"linkpath"`, says: "global header"},
	{what: "global header with a size", bytes: raw(global(record("size", "0")), regular("f", "x")), names: `"size"`, says: "global header"},
	{what: "pax header without a length", bytes: raw(regular("f", ""), member{name: "p", flag: 'x', content: "path=g\n"}, regular("g", "")), names: `"f"`, says: "malformed"},
	{what: "pax size that is no number", bytes: raw(regular("f", ""), pax(record("size", "-1")), regular("g", "x")), names: `"f"`, says: "malformed"},
	{what: "pax header that claims 1 GiB", bytes: raw(regular("f", ""), member{name: "p", flag: 'x', size: "10000000000\x00"}), names: `"f"`, says: ""},
	{what: "size of 8 GiB", bytes: raw(member{name: "f", flag: '0', size: "77777777777\x00", content: "x"}), names: `"f"`, says: "larger", code: scafo.CodeResourceLimit},
	{what: "binary size of 4 EiB", bytes: raw(member{name: "f", flag: '0', size: binarySize(1 << 62), content: "x"}), names: `"f"`, says: "larger", code: scafo.CodeResourceLimit},
	{what: "negative size", bytes: raw(regular("f", ""), member{name: "g", flag: '0', size: negativeSize()}), names: `"f"`, says: "malformed"},
	{what: "size that is no number", bytes: raw(regular("f", ""), member{name: "g", flag: '0', size: "0x000000001\x00"}), names: `"f"`, says: "malformed"},
	{what: "size beyond the end", bytes: bare(member{name: "f", flag: '0', size: "00000010000\x00", content: "x"}), names: `"f"`, says: "truncated"},
	{what: "size that hides the end", bytes: raw(member{name: "f", flag: '0', size: "00000004000\x00", content: "x"}), names: `"f"`, says: "truncated"},
	{what: "sparse file of 8 GiB", bytes: raw(member{name: "f", flag: 'S', magic: "ustar  \x00", alter: func(h []byte) { copy(h[483:495], "77777777777\x00") }}), names: `"f"`, says: "larger", code: scafo.CodeResourceLimit},
	{what: "wrong checksum", bytes: raw(regular("f", "x"), member{name: "g", flag: '0', sum: "0000001\x00"}), names: `"f"`, says: "malformed"},
	{what: "cut off within a header", bytes: bare(regular("f", "x"), regular("g", ""))[:2*tarBlock+100], names: `"f"`, says: "truncated"},
	{what: "cut off within a file", bytes: bare(regular("f", strings.Repeat("x", 1000)))[:tarBlock+300], names: `"f"`, says: "truncated"},
	{what: "cut off between two entries", bytes: bare(regular("f", strings.Repeat("x", tarBlock))), names: `"f"`, says: "truncated"},
	{what: "bomb of bytes", bytes: raw(regular("f", strings.Repeat("x", 1<<20))), names: `"f"`, says: "larger", code: scafo.CodeResourceLimit},
	{what: "bomb of many files", bytes: raw(regular("f", strings.Repeat("x", 400<<10)), regular("g", strings.Repeat("x", 400<<10)), regular("h", strings.Repeat("x", 400<<10))), names: `"h"`, says: "larger", code: scafo.CodeResourceLimit},
	{what: "bomb of entries", bytes: raw(manyOf(101)...), names: `"e100"`, says: "more than 100 entries", code: scafo.CodeResourceLimit},
	{what: "bomb of folders", bytes: raw(longName(strings.Repeat("d/", 101)), folder("f")), names: `"d/d/`, says: "more than 100 entries", code: scafo.CodeResourceLimit},
}

func manyOf(n int) []member {
	out := make([]member, n)
	for i := range out {
		out[i] = regular(fmt.Sprintf("e%d", i), "")
	}
	return out
}

// world is everything around a staging folder, with what a write would change.
func world(t *testing.T, root, without string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == without {
			return fs.SkipDir
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		out[p] = fmt.Sprintf("%o %d %d %d %d", st.Mode, st.Nlink, st.Size, st.Ino, st.Mtim.Nano())
		if st.Mode&syscall.S_IFMT == syscall.S_IFREG {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[p] += " " + string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestStrangeArchives unpacks each archive of the tables, plain and compressed, and
// looks at everything around the staging folder before and after.
func TestStrangeArchives(t *testing.T) {
	if n := len(hostile) + len(oddities); n < 60 {
		t.Fatalf("the tables have %d archives", n)
	}
	for _, c := range append(oddities, hostile...) {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			for name, pack := range map[string]func([]byte) []byte{
				"tar":  func(b []byte) []byte { return b },
				"gzip": func(b []byte) []byte { return gzipped(t, b) },
				"zstd": func(b []byte) []byte { return zstded(t, b) },
			} {
				checkStrange(t, name, pack, c)
			}
		})
	}
}

func checkStrange(t *testing.T, format string, pack func([]byte) []byte, c strange) {
	t.Helper()
	outside := t.TempDir()
	writeFile(t, outside, "secret", "s3cret")
	writeFile(t, outside, "x/secret", "s3cret too")
	staging := filepath.Join(outside, "x", "staging")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	b := c.bytes
	if c.in != nil {
		b = c.in(outside)
	}
	before := world(t, outside, staging)
	_, err := Unpack(t.Context(), bytes.NewReader(pack(b)), staging, Limits{Bytes: 1 << 20, Entries: 100})
	if after := world(t, outside, staging); !maps.Equal(after, before) {
		t.Errorf("%s: outside there was\n%v\nand is\n%v", format, before, after)
	}
	got := tree(t, staging)
	if c.want != nil {
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: %v\ngot  %q\nwant %q", format, err, got, c.want)
		}
		return
	}
	code := c.code
	if code == "" {
		code = scafo.CodeInvalidInput
	}
	if scafo.CodeOf(err) != code || !strings.Contains(err.Error(), c.names) || !strings.Contains(err.Error(), c.says) {
		t.Errorf("%s: %v; want %s that names %s and says %q", format, err, code, c.names, c.says)
	}
	if len(got) != 0 {
		t.Errorf("%s: %q stayed after the refusal", format, got)
	}
}

// What only a compressed archive can be.
func TestStrangeCompression(t *testing.T) {
	honest := raw(regular("f", "x"))
	named := func() []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Name, w.Comment, w.Extra = "../../evil", "hello", []byte("more")
		if _, err := w.Write(honest); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	want := map[string]string{"f": "x"}
	zeros := raw(regular("zeros", strings.Repeat("\x00", 16<<20)))
	same := func(b []byte) []byte { return b }
	for _, c := range []strange{
		{what: "gzip with a name", bytes: named(), want: want},
		{what: "gzip in two members", bytes: append(gzipped(t, honest[:700]), gzipped(t, honest[700:])...), want: want},
		{what: "zstd in two frames", bytes: append(zstded(t, honest[:700]), zstded(t, honest[700:])...), want: want},
		{what: "gzip of gzip", bytes: gzipped(t, gzipped(t, honest)), says: "the artifact is"},
		{what: "gzip, then noise", bytes: append(gzipped(t, honest), "noise noise noise"...), names: `"f"`, says: ""},
		{what: "gzip bomb", bytes: gzipped(t, zeros), names: `"zeros"`, says: "larger", code: scafo.CodeResourceLimit},
		{what: "zstd bomb", bytes: zstded(t, zeros), names: `"zeros"`, says: "larger", code: scafo.CodeResourceLimit},
		{what: "bomb behind the end", bytes: gzipped(t, append(raw(regular("f", "x")), make([]byte, 16<<20)...)), names: `"f"`, says: "larger", code: scafo.CodeResourceLimit},
		{what: "truncated gzip", bytes: gzipped(t, honest)[:20], says: ""},
		{what: "gzip without its checksum", bytes: func() []byte { z := gzipped(t, honest); return z[:len(z)-8] }(), names: `"f"`, says: "truncated"},
		{what: "truncated zstd", bytes: zstded(t, honest)[:20], says: ""},
	} {
		t.Run(c.what, func(t *testing.T) { checkStrange(t, "as it is", same, c) })
	}
}

// A configuration that is a link is refused by name, wherever it leads.
func TestConfigurationThatIsALink(t *testing.T) {
	for _, name := range ConfigNames {
		dir := t.TempDir()
		b := raw(regular("other.json", "{}"), symbolic(name, "other.json"))
		if _, err := Unpack(t.Context(), bytes.NewReader(b), dir, wide); err != nil {
			t.Fatal(err)
		}
		if _, err := FindConfig(dir); scafo.CodeOf(err) != scafo.CodeInvalidInput || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
