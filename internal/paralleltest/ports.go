package paralleltest

import (
	"net"
	"strconv"
	"testing"
)

// Where [Ports] looks: below what runtimes (20000-29999) and embedded stores take of
// themselves, and below what the kernel picks (from 32768).
const (
	lowestPort  = 10000
	highestPort = 19999
	blockOfPort = 100 // a block, of which the first port is its claim
)

// MostPorts is how many ports [Ports] can give a test at once.
const MostPorts = blockOfPort - 1

// Ports returns the first of n ports in a row that no other test on this machine gets
// until t is over, though nobody listens on them meanwhile: whoever listens on the port
// before the first of a block has the block.
func Ports(t testing.TB, n int) int {
	t.Helper()
	if n < 1 || n > MostPorts {
		t.Fatalf("%d ports: a test gets 1 to %d", n, MostPorts)
	}
	for claim := lowestPort; claim+MostPorts <= highestPort; claim += blockOfPort {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(claim)))
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = l.Close() })
		return claim + 1
	}
	t.Fatalf("every block of ports from %d to %d is taken", lowestPort, highestPort)
	return 0
}
