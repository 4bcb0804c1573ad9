package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/scafo/scafo"
)

// The longest names that Linux takes, in bytes.
const (
	maxSegment = 255
	maxPath    = 4095
)

// appleDouble begins the "._name" companions that macOS keeps beside a file.
var appleDouble = []byte{0x00, 0x05, 0x16, 0x07}

// Unpacked is what an archive held.
type Unpacked struct {
	Entries int
	Bytes   int64
}

// Unpack unpacks the archive into the directory dir, which exists, is empty, and
// belongs to nobody else. Its refusals name the entry that is to blame. After an
// error dir is empty again.
//
// Regular files and directories are taken; so are links that cannot lead out:
// a symbolic one whose target is relative, climbs only at its beginning and not
// above dir, and a hard one to a file of the archive that came before. Nothing is
// ever written through a link, and no name twice.
func Unpack(ctx context.Context, archive io.Reader, dir string, l Limits) (Unpacked, error) {
	stream, done, err := open(archive, l)
	if err != nil {
		return Unpacked{}, err
	}
	defer done()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Unpacked{}, DiskError(err)
	}
	defer root.Close()
	u := &unpacker{ctx: ctx, root: root, stream: stream, limits: l, buf: make([]byte, copyBuffer)}
	if err := u.whole(); err != nil {
		u.clear()
		return Unpacked{}, err
	}
	return Unpacked{Entries: u.entries, Bytes: u.bytes}, nil
}

// whole unpacks everything, and reads the stream to its end.
func (u *unpacker) whole() error {
	if err := u.all(tar.NewReader(u.stream)); err != nil {
		return err
	}
	if !u.stream.ended() {
		return u.broken(io.ErrUnexpectedEOF)
	}
	// Behind the end of the archive there is padding, and the compression's
	// checksum.
	if _, err := io.CopyBuffer(io.Discard, onlyReader{u.stream}, u.buf); err != nil {
		return u.broken(err)
	}
	return nil
}

// clear removes what was unpacked. What it cannot remove is left to the caller,
// who removes the directory itself.
func (u *unpacker) clear() {
	names, err := fs.ReadDir(u.root.FS(), ".")
	if err != nil {
		return
	}
	for _, n := range names {
		_ = u.root.RemoveAll(n.Name())
	}
}

// broken is what is wrong with the archive, and where.
func (u *unpacker) broken(err error) error {
	err = broken(err)
	var e *scafo.Error
	if where := u.stream.where(); where != "" && errors.As(err, &e) && !strings.HasSuffix(e.Detail, where) {
		return scafo.Wrap(err, e.Code, "%s%s", e.Detail, where)
	}
	return err
}

// onlyReader keeps io.CopyBuffer to the buffer that it is given.
type onlyReader struct{ io.Reader }

type unpacker struct {
	ctx     context.Context // of this one call
	root    *os.Root
	stream  *boundedReader
	limits  Limits
	buf     []byte
	entries int
	bytes   int64
	parent  string // the last parent directory that was found to be a real one
}

func (u *unpacker) all(r *tar.Reader) error {
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return u.broken(err)
		}
		u.stream.at = quoted(h.Name)
		if err := u.count(); err != nil {
			return err
		}
		if err := u.entry(h, r); err != nil {
			return err
		}
	}
}

func (u *unpacker) count() error {
	if u.entries++; u.entries > u.limits.Entries {
		return scafo.Errorf(scafo.CodeResourceLimit, "the archive has more than %d entries%s", u.limits.Entries, u.stream.where())
	}
	return nil
}

// refuse names the entry that is to blame, and the rule that it breaks.
func refuse(name, rule string) error {
	return scafo.Errorf(scafo.CodeInvalidInput, "archive entry %s %s", quoted(name), rule)
}

// quoted is an entry's name as a refusal shows it.
func quoted(name string) string {
	const most = 200
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	return strconv.Quote(strings.ToValidUTF8(name, "\ufffd"))
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		// Git and others leave notes there. What would change the entries that
		// follow is read by some programs and not by others.
		for _, key := range []string{"path", "linkpath", "size"} {
			if _, ok := h.PAXRecords[key]; ok {
				return scafo.Errorf(scafo.CodeInvalidInput, "a pax global header of the archive sets %q", key)
			}
		}
		return nil
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return nil
		}
		return refuse(h.Name, "has no name")
	}
	if err := u.makeParents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.makeDir(name)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, content)
	case tar.TypeSymlink:
		return u.symlink(name, h.Linkname)
	case tar.TypeLink:
		return u.hardLink(name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock:
		return refuse(h.Name, "is a device")
	case tar.TypeFifo:
		return refuse(h.Name, "is a FIFO")
	}
	return refuse(h.Name, "is of a kind that an artifact may not hold")
}

// cleanName is an entry's name relative to the root, without "./", doubled and
// trailing slashes.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse(name, "has no name")
	case strings.IndexByte(name, 0) >= 0:
		return "", refuse(name, "has a NUL in its name")
	case !utf8.ValidString(name):
		return "", refuse(name, "has a name that is not UTF-8")
	case strings.Contains(name, `\`):
		return "", refuse(name, "has a backslash in its name")
	case strings.HasPrefix(name, "/"):
		return "", refuse(name, "has an absolute path")
	case len(name) > maxPath:
		return "", refuse(name, "has a path that is too long")
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == ".." {
			return "", refuse(name, "has a path that leads to a parent directory")
		}
		if len(segment) > maxSegment {
			return "", refuse(name, "has a name that is too long")
		}
	}
	return path.Clean(name), nil
}

// makeParents makes the directories above name where they are missing, and
// refuses a name below anything but a real directory.
func (u *unpacker) makeParents(name string) error {
	parent := path.Dir(name)
	if parent == "." || parent == u.parent {
		return nil
	}
	for i := 0; i < len(parent); i++ {
		if next := strings.IndexByte(parent[i:], '/'); next < 0 {
			i = len(parent)
		} else {
			i += next
		}
		if err := u.realDir(name, parent[:i]); err != nil {
			return err
		}
	}
	u.parent = parent
	return nil
}

func (u *unpacker) realDir(name, dir string) error {
	info, err := u.root.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := u.count(); err != nil {
			return err
		}
		return u.disk(name, u.root.Mkdir(dir, 0o755))
	case err != nil:
		return u.disk(name, err)
	case info.Mode()&fs.ModeSymlink != 0:
		return refuse(name, "lies behind a link")
	case !info.IsDir():
		return refuse(name, "lies below an entry that is no directory")
	}
	return nil
}

func (u *unpacker) makeDir(name string) error {
	err := u.root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		info, err := u.root.Lstat(name)
		if err == nil && info.IsDir() {
			return nil // archives repeat directories
		}
		return refuse(name, "is in the archive twice")
	}
	return u.disk(name, err)
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.limits.Bytes-u.bytes {
		return scafo.Errorf(scafo.CodeResourceLimit, "the files of the artifact are larger than %d bytes%s", u.limits.Bytes, u.stream.where())
	}
	head := u.buf[:len(appleDouble)]
	n, err := io.ReadFull(content, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return u.broken(err)
	}
	if int64(n) < min(h.Size, int64(len(head))) {
		return u.broken(io.ErrUnexpectedEOF)
	}
	if strings.HasPrefix(path.Base(name), "._") && bytes.Equal(head[:n], appleDouble) {
		return nil
	}
	mode := fs.FileMode(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	if err != nil {
		return u.disk(name, err)
	}
	err = u.fill(f, io.MultiReader(bytes.NewReader(bytes.Clone(head[:n])), content))
	if cerr := f.Close(); err == nil && cerr != nil {
		err = DiskError(cerr)
	}
	return err
}

// fill writes an entry's content, counting what is written: the size that the
// header claims, and the size of a sparse file, are not what was sent.
func (u *unpacker) fill(f io.Writer, content io.Reader) error {
	for {
		n, err := content.Read(u.buf)
		if cerr := u.ctx.Err(); cerr != nil {
			return cerr
		}
		if n > 0 {
			if u.bytes += int64(n); u.bytes > u.limits.Bytes {
				return scafo.Errorf(scafo.CodeResourceLimit, "the files of the artifact are larger than %d bytes%s", u.limits.Bytes, u.stream.where())
			}
			if werr := write(f, u.buf[:n], u.limits); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return u.broken(err)
		}
	}
}

func (u *unpacker) symlink(name, target string) error {
	if err := checkTarget(name, target); err != nil {
		return err
	}
	return u.disk(name, u.root.Symlink(target, name))
}

// checkTarget refuses the target of a symbolic link that could lead out of the
// root, whatever else the archive holds. The link's own directory is a real one,
// so ".." at the beginning climbs as many directories as the name has; a ".."
// behind a name might climb from wherever another link led.
func checkTarget(name, target string) error {
	switch {
	case target == "":
		return refuse(name, "is a link without a target")
	case strings.IndexByte(target, 0) >= 0:
		return refuse(name, "is a link with a NUL in its target")
	case strings.HasPrefix(target, "/"):
		return refuse(name, "is a link to an absolute path")
	case strings.Contains(target, `\`):
		return refuse(name, "is a link with a backslash in its target")
	case len(target) > maxPath:
		return refuse(name, "is a link with a target that is too long")
	}
	depth, named := strings.Count(name, "/"), false
	for segment := range strings.SplitSeq(target, "/") {
		switch segment {
		case "", ".":
		case "..":
			if named {
				return refuse(name, "is a link whose target climbs behind a name")
			}
			if depth--; depth < 0 {
				return refuse(name, "is a link that leads out of the archive")
			}
		default:
			named = true
		}
	}
	return nil
}

func (u *unpacker) hardLink(name, target string) error {
	old, err := cleanName(target)
	if err != nil {
		return refuse(name, "is a hard link that leads out of the archive")
	}
	for i := range len(old) {
		if old[i] != '/' {
			continue
		}
		if info, err := u.root.Lstat(old[:i]); err != nil || !info.IsDir() {
			return refuse(name, "is a hard link to no file that came before it")
		}
	}
	if info, err := u.root.Lstat(old); err != nil || !info.Mode().IsRegular() {
		return refuse(name, "is a hard link to no file that came before it")
	}
	return u.disk(name, u.root.Link(old, name))
}

// disk says what a failed call means for the entry.
func (u *unpacker) disk(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return refuse(name, "is in the archive twice")
	case errors.Is(err, syscall.ENAMETOOLONG):
		return refuse(name, "has a path that is too long")
	case errors.Is(err, syscall.EMLINK):
		return refuse(name, "is one hard link too many")
	}
	return DiskError(err)
}
