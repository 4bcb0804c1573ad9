package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo"
)

// opinion is what a program makes of an archive.
type opinion struct {
	honest bool // it was unpacked without a word
	said   string
	tree   map[string]string
}

// judge unpacks archives in its own way.
type judge struct {
	name string
	argv []string // the archive's path and the folder's are appended
}

// judges are Debian's two programs for tar archives. Both keep to the folder, and
// what they would change of its entries' owners and modes does not count.
func judges(t *testing.T) []judge {
	t.Helper()
	of := func(program, version string, argv ...string) judge {
		path, err := exec.LookPath(program)
		if err == nil {
			var b []byte
			if b, err = exec.CommandContext(t.Context(), path, "--version").Output(); err == nil && !strings.HasPrefix(string(b), version) {
				err = fmt.Errorf("its version is %.40q", b)
			}
		}
		if err != nil {
			t.Skipf("no second opinion: %s is not there (Debian has it in the packages tar and libarchive-tools): %v", program, err)
		}
		// A size that an archive claims must not fill this disk.
		sh := []string{"sh", "-c", `ulimit -f 16384 && exec "$@"`, "sh", path}
		return judge{program, append(sh, argv...)}
	}
	return []judge{
		of("tar", "tar (GNU tar)", "--no-same-owner", "--no-same-permissions", "--warning=no-timestamp"),
		of("bsdtar", "bsdtar", "--no-same-owner", "--no-same-permissions"),
	}
}

// ask unpacks an archive with the judge's program in a fresh folder, which lies deep
// enough for "../.." to stay within the test's own.
func (j judge) ask(t *testing.T, b []byte) opinion {
	t.Helper()
	base := t.TempDir()
	dir := filepath.Join(base, "a/b/c/d/staging")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, base, "archive", string(b))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, j.argv[0], append(j.argv[1:], "-x", "-f", filepath.Join(base, "archive"), "-C", dir)...) //nolint:gosec // the programs that judges found
	c.Env = quiet()
	said, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return opinion{honest: err == nil && len(said) == 0, said: string(said), tree: readableTree(t, dir)}
}

// quiet is an environment in which nothing changes what the programs do.
func quiet() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"} }

// readableTree is tree for what somebody else has unpacked: with modes that keep the
// owner out, and with kinds that may not be opened.
func readableTree(t *testing.T, root string) map[string]string {
	t.Helper()
	odd := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(p, &st); err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.Chmod(p, 0o700)
		case d.Type().IsRegular() && st.Size < 1<<20:
			return os.Chmod(p, 0o600)
		case d.Type()&fs.ModeSymlink == 0:
			name, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			odd[name] = fmt.Sprintf("%v of %d bytes", d.Type(), st.Size)
			return os.Remove(p)
		}
		return nil
	})
	if errors.Is(err, syscall.ENAMETOOLONG) {
		return map[string]string{"a path": "that is too long to look at"}
	}
	if err != nil {
		t.Fatal(err)
	}
	out := tree(t, root)
	maps.Copy(out, odd)
	return out
}

func ours(t *testing.T, b []byte) opinion {
	t.Helper()
	dir := t.TempDir()
	_, err := Unpack(t.Context(), bytes.NewReader(b), dir, Limits{Bytes: 1 << 20, Entries: 100})
	o := opinion{honest: err == nil, tree: tree(t, dir)}
	if err != nil {
		o.said = err.Error()
		if code := scafo.CodeOf(err); code != scafo.CodeInvalidInput && code != scafo.CodeResourceLimit {
			t.Errorf("refused as %s: %v", code, err)
		}
	}
	return o
}

// A rule of ours that keeps out what both programs take, and the archives of the
// tables that it keeps out.
type stricter struct {
	rule     string // as the refusal has it
	why      string
	archives []string
}

// strictness states, by name, each archive that Debian's programs both unpack without
// a word, to the same files, and that is refused here.
var strictness = []stricter{
	{"backslash", "a path on one system is a name on another", []string{"backslashes", "backslash at the end", "backslashes in a target"}},
	{"out of the archive", "the programs make such links, and leave it to the reader of the tree not to follow them", []string{
		"link out", "link out of a folder", "link out by pax linkpath", "link out by GNU's long target",
	}},
	{"link to an absolute path", "the same", []string{"link to an absolute path"}},
	{"climbs", "the same: where it leads depends on other links", []string{"link that climbs behind a name", "two links that make a way out"}},
	{"twice", "the programs let the later entry win; whoever looked at the first has seen something else", []string{
		"link, then a file of its name", "link, then a folder of its name", "link, then a hard link of its name", "link over a file",
		"folder over a file", "file over a folder", "file twice", "file twice, spelled anew", "configuration twice",
	}},
	{"no file that came before", "a hard link to a symbolic link is a second symbolic link in another folder", []string{"hard link to a link"}},
	{"device", "no application needs one", []string{"character device", "block device"}},
	{"FIFO", "whoever reads it waits for good", []string{"FIFO"}},
	{"kind", "what is passed over in silence is not what was meant", []string{"volume label"}},
	{"malformed", "the programs end the name at the NUL", []string{"NUL in a pax path", "NUL in a pax linkpath"}},
	{"UTF-8", "the programs take any bytes; a Worker's modules and assets have names", []string{"a name that is not UTF-8"}},
	{"truncated", "between two entries nothing is missing for the programs, but the end is", []string{"cut off between two entries"}},
	{"larger", "it is a bound of the node", []string{"bomb of bytes", "bomb of many files"}},
	{"more than 100 entries", "it is a bound of the node", []string{"bomb of entries", "bomb of folders"}},
}

// laxity states each archive that is taken here, and that one of the programs does not
// take, warns of, or makes other files of.
var laxity = map[string]string{
	"macOS companions":           "they are files for the programs, and passed over here",
	"pax records of others":      "tar warns of keywords that it does not know",
	"pax header of nobody":       "bsdtar asks for an entry behind it",
	"names that only look wrong": "bsdtar takes C: for a drive",
}

// opinions are those of the archive reader and of both programs.
type opinions struct{ ours, tar, bsdtar opinion }

func ask(t *testing.T, j []judge, b []byte) opinions {
	t.Helper()
	return opinions{ours(t, b), j[0].ask(t, b), j[1].ask(t, b)}
}

// honest is whether both programs take the archive, and for the same.
func (o opinions) honest() bool {
	return o.tar.honest && o.bsdtar.honest && maps.Equal(o.tar.tree, o.bsdtar.tree)
}

func (o opinions) String() string {
	return fmt.Sprintf("here   %v %q %.300q\ntar    %v %q %.300q\nbsdtar %v %q %.300q", o.ours.honest, o.ours.said, o.ours.tree, o.tar.honest, o.tar.said, o.tar.tree, o.bsdtar.honest, o.bsdtar.said, o.bsdtar.tree)
}

// TestSecondOpinion asks Debian's tar and bsdtar about every archive of the tables.
// What both take is taken here, to the same files, or the difference is stated above;
// what one of them takes otherwise, or not at all, is refused here, or that is stated.
func TestSecondOpinion(t *testing.T) {
	j := judges(t)
	refusedBy := map[string]string{}
	for _, s := range strictness {
		for _, a := range s.archives {
			refusedBy[a] = s.rule
		}
	}
	met := map[string]bool{}
	for _, c := range append(oddities, hostile...) {
		met[c.what] = true
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			b := c.bytes
			if c.in != nil {
				b = c.in(t.TempDir())
			}
			o := ask(t, j, b)
			agreed := o.honest() && maps.Equal(o.ours.tree, o.tar.tree)
			rule, strict := refusedBy[c.what]
			why, lax := laxity[c.what]
			switch {
			case o.ours.honest && !agreed && !lax, !o.ours.honest && o.honest() && !strict:
				t.Errorf("a difference that is not stated:\n%v", o)
			case strict && o.honest() && !strings.Contains(o.ours.said, rule):
				t.Errorf("it is to be refused by the rule of %q:\n%v", rule, o)
			case lax && agreed, strict && !o.honest():
				t.Logf("this version of the programs differs no more (%s):\n%v", why, o)
			}
		})
	}
	for _, stated := range []map[string]string{refusedBy, laxity} {
		for a := range stated {
			if !met[a] {
				t.Errorf("%q is stated and in no table", a)
			}
		}
	}
}

// TestSecondOpinionOfGenerated asks about archives of entries that were drawn by lot,
// most of them in each other's way.
func TestSecondOpinionOfGenerated(t *testing.T) {
	j := judges(t)
	const archives, least = 64, 10
	var taken atomic.Int32
	t.Run("archives", func(t *testing.T) {
		for n := range archives {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				members := drawn(rand.New(rand.NewPCG(uint64(n), 45))) //nolint:gosec // a seed, not a secret
				o := ask(t, j, raw(members...))
				stated := func(s stricter) bool { return strings.Contains(o.ours.said, s.rule) }
				switch {
				case o.ours.honest && !(o.honest() && maps.Equal(o.ours.tree, o.tar.tree)):
					t.Errorf("it is taken here:\n%v\n%+v", o, members)
				case !o.ours.honest && o.honest() && !slices.ContainsFunc(strictness, stated):
					t.Errorf("it is refused here:\n%v\n%+v", o, members)
				}
				if o.ours.honest && len(o.ours.tree) > 1 {
					taken.Add(1)
				}
			})
		}
	})
	t.Logf("%d of %d were taken", taken.Load(), archives)
	if n := taken.Load(); n < least && !t.Failed() {
		t.Errorf("%d of %d archives were taken: they are all too strange", n, archives)
	}
}

// drawn are one to six entries.
func drawn(r *rand.Rand) []member {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	out := make([]member, 0, 6)
	for range 1 + r.IntN(6) {
		name := pick("f", "g", "h", "d", "d/f", "./d/g", "d//h", "d/e/f", "l", "l/f", "k", "../x", `a\b`, "é", "f/g")
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			out = append(out, regular(name, pick("", "x", strings.Repeat("y", tarBlock), strings.Repeat("z", tarBlock+1))))
		case 4, 5:
			out = append(out, folder(name+"/"))
		case 6, 7:
			out = append(out, symbolic(name, pick("f", "d", ".", "./d/f", "d/../f", "../x", "../f", "nothing", "l")))
		case 8:
			out = append(out, hardlink(name, pick("f", "./f", "d/f", "d/g", "d", "l", "l/f", "g")))
		default:
			out = append(out, longName(strings.Repeat("n/", 60)+name), regular("short", name))
		}
	}
	return out
}

// TestOthersArchives unpacks what Debian's programs make of a project, in each of
// their formats.
func TestOthersArchives(t *testing.T) {
	j := judges(t)
	project := func(t *testing.T, long bool) string {
		dir := t.TempDir()
		for name, content := range map[string]string{"wrangler.jsonc": "{}", "src/index.ts": "export default {}", "public/é/ü.txt": "x", "empty": "", "a\nb": "y"} {
			writeFile(t, dir, name, content)
		}
		if long {
			writeFile(t, dir, strings.Repeat("a-longer-name-than-ustar-takes/", 9)+strings.Repeat("n", 200), "x")
		}
		holes, err := os.Create(filepath.Join(dir, "holes"))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{0, 100 << 10, 300 << 10} {
			if _, err := holes.WriteAt([]byte("data"), at); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(holes.Close(),
			os.Chmod(filepath.Join(dir, "src/index.ts"), 0o755), os.Mkdir(filepath.Join(dir, "nothing"), 0o700),
			os.Symlink("../wrangler.jsonc", filepath.Join(dir, "src/link")), os.Link(filepath.Join(dir, "empty"), filepath.Join(dir, "src/same")),
		); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for _, c := range []struct {
		of   judge
		long bool
		how  []string
	}{
		{j[0], false, []string{"--format=v7"}},
		{j[0], false, []string{"--format=ustar"}},
		{j[0], true, []string{"--format=oldgnu", "--sparse"}},
		{j[0], true, []string{"--format=gnu", "--gzip"}},
		{j[0], true, []string{"--format=posix", "--sparse"}},
		{j[0], true, []string{"--format=posix", "--sparse", "--sparse-version=0.0"}},
		{j[0], true, []string{"--format=posix", "--sparse", "--sparse-version=0.1", "--xattrs", "--acls"}},
		{j[1], false, []string{"--format=ustar"}},
		{j[1], true, []string{"--format=gnutar"}},
		{j[1], true, []string{"--format=pax", "--zstd"}},
		{j[1], true, []string{"--format=pax", "--gzip", "--read-sparse"}},
		{j[1], true, []string{"--format=paxr"}},
	} {
		t.Run(c.of.name+" "+strings.Join(c.how, " "), func(t *testing.T) {
			t.Parallel()
			dir, to := project(t, c.long), filepath.Join(t.TempDir(), "archive")
			argv := append(slices.Clone(c.of.argv[:5]), append(c.how, "-c", "-f", to, "-C", dir, ".")...)
			cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...) //nolint:gosec // the programs that judges found
			cmd.Env = quiet()
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, said)
			}
			b, err := os.ReadFile(to)
			if err != nil {
				t.Fatal(err)
			}
			if o := ours(t, b); !o.honest || !maps.Equal(o.tree, tree(t, dir)) {
				t.Errorf("%s\ngot  %.500q\nwant %.500q", o.said, o.tree, tree(t, dir))
			}
		})
	}
}
