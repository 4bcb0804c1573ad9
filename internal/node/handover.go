package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// listenerVariable tells a program that takes another one's place which file
// descriptor is the API's listening socket.
const listenerVariable = "SCAFO_LISTEN_FD"

// routesWithin bounds how long calls wait, after a handover, for a node that knows
// the routes. An ingress waits longer.
const routesWithin = 2 * time.Second

// awaitRoutes returns once the node can say the routes: what comes until then waits
// in the queue of the handed-over socket, and is not refused.
func (n *Node) awaitRoutes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, routesWithin)
	defer cancel()
	for {
		changed := n.loop.RoutingChanged()
		if _, _, ready := n.loop.RoutingBody(""); ready {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Handover is how Run ends when the program on disk shall take this one's place:
// the requests have ended, the runtimes and the store go on, and the listening
// socket is open, so that connections wait in its queue.
type Handover struct {
	Listener *os.File
}

func (h *Handover) Error() string { return "the node hands over to the program on disk" }

// Exec starts the program on disk in this one's place. It returns only when that
// fails.
func (h *Handover) Exec(path string, args []string) error {
	fd := h.Listener.Fd()
	// Of all descriptors this one outlives the call.
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETFD, 0); errno != 0 {
		return errno
	}
	env := append(os.Environ(), listenerVariable+"="+strconv.Itoa(int(fd)))
	err := syscall.Exec(path, args, env)
	runtime.KeepAlive(h.Listener) // which the collector would close when nothing refers to it
	return err
}

// InheritedListener is the listening socket that an earlier program of this process
// handed over; nil when there was none.
func InheritedListener() (net.Listener, error) {
	s, ok := os.LookupEnv(listenerVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(listenerVariable); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(s)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q, which is no file descriptor", listenerVariable, s)
	}
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "api")
	defer f.Close() // FileListener works on a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the handed-over listener: %w", err)
	}
	return l, nil
}

// leaveWithin is how long a connection that was accepted may take to bring its
// request before the program is replaced.
const leaveWithin = time.Second

// keepSocket takes a copy of the API's listening socket, which stays open when the
// server closes its own.
func (n *Node) keepSocket() (*Handover, error) {
	tcp, ok := n.Listener.(*net.TCPListener)
	if !ok {
		return nil, errors.New("the API does not listen on a TCP socket")
	}
	f, err := tcp.File()
	if err != nil {
		return nil, err
	}
	return &Handover{Listener: f}, nil
}

// handOver ends the API's requests and the parts of the node, and nothing else.
func (n *Node) handOver(stopParts func()) {
	n.log.Info("handing over to the program on disk", "event", "node.handover")
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	n.front.shutdown(ctx)
	// The next program is a challenger like any other: it need not wait the lease out.
	if err := n.lease.Release(ctx); err != nil {
		n.log.Warn("the lease could not be released; its next holder waits for it to run out", "cause", err)
	}
	stopParts()
	if n.peers != nil {
		n.peers.close()
	}
}
