package node

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/config"
)

// A node's key file that others can read is used, and the log says so; another node's
// key is refused.
func TestTheNodesKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.jwk")
	open := func(id string) (said string, err error) {
		var log bytes.Buffer
		l := &config.Loaded{}
		l.Node.Key = path
		n := &Node{c: l, log: slog.New(slog.NewTextHandler(&log, nil)), ID: id}
		err = n.openKey()
		return log.String(), err
	}
	if said, err := open("n1"); err != nil || said != "" {
		t.Errorf("the first start: %q %v", said, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := open("n1"); err != nil || !strings.Contains(said, "chmod 600") || !strings.Contains(said, path) {
		t.Errorf("readable by others: %q %v", said, err)
	}
	if _, err := open("n2"); err == nil || !strings.Contains(err.Error(), "n1") || !strings.Contains(err.Error(), "n2") {
		t.Errorf("another node's key: %v", err)
	}
}

// Two nodes never share a state directory; the lock of one that is gone is free.
func TestTheStateDirectoryIsOneNodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	l, err := LockState(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 3*lockRetry)
	defer cancel()
	if _, err := LockState(soon, dir); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "another node") {
		t.Errorf("a second node: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := LockState(t.Context(), dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	// What the killed node was about to start has the lock still, and not for long.
	dup, err := syscall.Dup(int(again.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	time.AfterFunc(3*lockRetry, func() { _ = syscall.Close(dup) })
	third, err := LockState(t.Context(), dir)
	if err != nil {
		t.Fatalf("after what the second had begun to start: %v", err)
	}
	third.Close()
}
