package supervise

import (
	"hash/fnv"
	"net"
	"net/netip"
	"sync"

	"github.com/scafo/scafo"
)

// Range is celld.ports: the ports that processes may get, both ends included.
type Range struct{ First, Last int }

const (
	minPort = 1
	maxPort = 65535
)

func (r Range) check() error {
	if r.First < minPort || r.Last > maxPort || r.Last-r.First < 1 {
		return scafo.Errorf(scafo.CodeInvalidInput, "celld.ports: %d-%d is no range of at least two ports", r.First, r.Last)
	}
	return nil
}

// ports hands out the ports of the range, each to one process at a time.
type ports struct {
	r                Range
	public, internal netip.Addr

	mu   sync.Mutex
	held map[int]string // guarded by mu; port to uid
}

func newPorts(r Range, public, internal netip.Addr) *ports {
	return &ports{r: r, public: public, internal: internal, held: map[int]string{}}
}

// pair is the two listening addresses of one process.
type pair struct{ public, internal netip.AddrPort }

// take finds two ports that nobody holds or listens on. It begins with those that
// the application had before, then at a place that its uid gives, so that the
// supervisors of one machine seldom look at the same ones.
func (p *ports) take(uid string, before pair) (pair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := fnv.New32a()
	h.Write([]byte(uid)) //nolint:errcheck // a hash takes everything
	n := p.r.Last - p.r.First + 1
	start := int(h.Sum32() % uint32(n))
	public := p.findLocked(uid, p.public, int(before.public.Port()), start)
	if public == 0 {
		return pair{}, errNoPort
	}
	internal := p.findLocked(uid, p.internal, int(before.internal.Port()), start)
	if internal == 0 {
		delete(p.held, public)
		return pair{}, errNoPort
	}
	return pair{
		public:   netip.AddrPortFrom(p.public, uint16(public)),
		internal: netip.AddrPortFrom(p.internal, uint16(internal)),
	}, nil
}

var errNoPort = scafo.Errorf(scafo.CodeResourceLimit, "every port of celld.ports is taken")

func (p *ports) findLocked(uid string, addr netip.Addr, before, start int) int {
	try := func(port int) bool {
		if _, taken := p.held[port]; taken || !free(netip.AddrPortFrom(addr, uint16(port))) {
			return false
		}
		p.held[port] = uid
		return true
	}
	if before >= p.r.First && before <= p.r.Last && try(before) {
		return before
	}
	n := p.r.Last - p.r.First + 1
	for i := range n {
		if port := p.r.First + (start+i)%n; try(port) {
			return port
		}
	}
	return 0
}

// keep notes the ports of a process that runs already.
func (p *ports) keep(uid string, a pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range []int{int(a.public.Port()), int(a.internal.Port())} {
		if port != 0 {
			p.held[port] = uid
		}
	}
}

// release gives back every port of that uid.
func (p *ports) release(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, holder := range p.held {
		if holder == uid {
			delete(p.held, port)
		}
	}
}

// free reports whether nobody listens there at this moment.
func free(a netip.AddrPort) bool {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
