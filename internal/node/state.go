package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Names in the state directory.
const (
	lockFile      = "lock"
	machineFile   = "machine-id"
	ingressFile   = "ingress-token"
	stagingDir    = "staging"
	runtimesDir   = "runtimes"
	bootIDFile    = "/proc/sys/kernel/random/boot_id"
	machineIDSize = 8 // bytes
)

// StateLock keeps a second node out of a state directory for as long as the
// process lives: the kernel frees it, also after a kill -9.
type StateLock struct{ f *os.File }

// What a killed node was about to start has its lock for the moment between fork and
// exec, and so does a node that is dying, until the kernel is through with it.
const (
	lockPatience = 2 * time.Second
	lockRetry    = 10 * time.Millisecond
)

// LockState makes the state directory and takes its lock. A node that has just been
// killed may keep it for a moment: it is tried for two seconds, or until the context ends.
func LockState(ctx context.Context, dir string) (*StateLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the state directory: %w", err)
	}
	if err := lock(ctx, f); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("the state directory %s is used by another node that runs on this machine", dir)
		}
		return nil, fmt.Errorf("the state directory %s cannot be locked: %w", dir, err)
	}
	return &StateLock{f}, nil
}

// lock tries until the file is locked, or its time is over.
func lock(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Close frees the lock.
func (l *StateLock) Close() error { return l.f.Close() }

// MachineID is random, made once for a state directory: with an application's uid
// it names a runtime for good.
func MachineID(dir string) (string, error) {
	b := make([]byte, machineIDSize)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return keep(filepath.Join(dir, machineFile), hex.EncodeToString(b))
}

// BootID changes each time the machine starts.
func BootID() (string, error) {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("the machine's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// keep returns the content of a file that is written once, with what it shall hold
// where it is not there yet.
func keep(path, fresh string) (string, error) {
	b, err := os.ReadFile(path)
	if s := strings.TrimSpace(string(b)); err == nil && s != "" {
		return s, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return fresh, replaceFile(path, fresh+"\n")
}

// replaceFile writes a file that only its owner reads, whole or not at all.
func replaceFile(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
