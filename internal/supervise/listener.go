package supervise

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// strangerListens reports whether what listens at a is known to be no process of
// the session that pid leads. Somebody may have taken a port between the look at
// it and the process's own bind; an answer from there is not the process's.
// When the kernel does not tell, nobody is accused.
func strangerListens(pid int, a netip.AddrPort) bool {
	inode := listenerInode(a)
	if inode == "" {
		return false
	}
	link := "socket:[" + inode + "]"
	if hasOpen(pid, link) {
		return false
	}
	readable := false
	for _, other := range pids() {
		st, err := readStat(other)
		if err != nil {
			continue
		}
		if st.session == pid && hasOpen(other, link) {
			return false
		}
		readable = readable || other == pid
	}
	return readable
}

func hasOpen(pid int, link string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(dir + "/" + fd.Name()); err == nil && to == link {
			return true
		}
	}
	return false
}

// listenerInode is the inode of the socket that listens at a, or on that port of
// every address.
func listenerInode(a netip.AddrPort) string {
	table := "/proc/net/tcp"
	if a.Addr().Is6() {
		table = "/proc/net/tcp6"
	}
	f, err := os.Open(table)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // read only
	const localField, stateField, inodeField, listening = 1, 3, 9, "0A"
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inodeField || fields[stateField] != listening {
			continue
		}
		if local, ok := kernelAddress(fields[localField]); ok && local.Port() == a.Port() &&
			(local.Addr() == a.Addr() || local.Addr().IsUnspecified()) {
			return fields[inodeField]
		}
	}
	return ""
}

// kernelAddress reads `0100007F:1F90`: words in the machine's byte order.
func kernelAddress(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	if !ok {
		return netip.AddrPort{}, false
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr, uint16(p)), ok
}
