package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// dataDir is the data directory of one application on one machine. Everything in
// it can be made again from the bucket; it makes starts fast, and remembers
// which workerds an earlier run of this program left.
//
//	lock            held while a process uses it
//	state.json      the workerds that run, and what was proven of the store
//	deployments/    one directory for each deployment that is served
//	assets/         the cache of assets by digest, unless it lies elsewhere
//	disk/<slot>/    the Durable Objects of one workerd
//	run/<n>/        configuration and credentials of one workerd
type dataDir struct {
	path string
	lock *os.File
	temp bool

	mu    sync.Mutex // guards the rest
	state savedState
	runs  int
}

// savedState is state.json.
type savedState struct {
	V        int          `json:"v"`
	Target   string       `json:"target"` // which store and prefix the rest is about
	Slot     int          `json:"slot"`   // whose disk is the warmest
	Proven   time.Time    `json:"proven"` // when the store last kept its conditions
	Children []savedChild `json:"children,omitempty"`
}

// savedChild is a workerd that may still be a member of the cluster.
type savedChild struct {
	identity
	Slot int `json:"slot"`
	// Record is the key of its record in the cluster, Address what it says there.
	Record  string `json:"record,omitempty"`
	Address string `json:"address,omitempty"`
}

const lockWait = 3 * time.Second

// openDataDir takes the directory for this process alone. An empty path makes a
// temporary one.
func openDataDir(path, target string) (*dataDir, error) {
	d := &dataDir{path: path}
	if path == "" {
		p, err := os.MkdirTemp("", "celld-workerd-")
		if err != nil {
			return nil, err
		}
		d.path, d.temp = p, true
	}
	var err error
	if d.path, err = filepath.Abs(d.path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory: %w", err)
	}
	if d.lock, err = takeLock(d.file("lock")); err != nil {
		return nil, err
	}
	// What an earlier run of this program left there, no process uses any more;
	// some of it holds credentials.
	for _, left := range []string{"run", "deployments"} {
		if err := os.RemoveAll(d.file(left)); err != nil {
			return nil, fmt.Errorf("the data directory: %w", err)
		}
	}
	b, err := os.ReadFile(d.file("state.json"))
	if err == nil {
		// One that cannot be read is the same as none: leases are waited out.
		if json.Unmarshal(b, &d.state) != nil || d.state.V != 1 || d.state.Target != target {
			d.state = savedState{}
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	d.state.V, d.state.Target = 1, target
	return d, nil
}

func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the data directory: %w", err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = errors.New("another process uses it")
			}
			return nil, fmt.Errorf("the data directory %s: %w", filepath.Dir(path), err)
		}
	}
}

func (d *dataDir) file(parts ...string) string {
	return filepath.Join(append([]string{d.path}, parts...)...)
}

// newRun is a directory that does not exist yet, for one workerd.
func (d *dataDir) newRun() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs++
	return d.file("run", fmt.Sprint(d.runs))
}

// disk is the directory of a slot, made when it is missing.
func (d *dataDir) disk(slot int) (string, error) {
	p := d.file("disk", fmt.Sprint(slot))
	return p, os.MkdirAll(p, 0o700)
}

func (d *dataDir) saved() savedState {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	s.Children = append([]savedChild(nil), d.state.Children...)
	return s
}

// update changes the state and writes it, by rename.
func (d *dataDir) update(change func(*savedState)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.state)
	b, err := json.MarshalIndent(d.state, "", "  ")
	if err != nil {
		return err
	}
	tmp := d.file("state.json.new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.file("state.json"))
}

// close gives the directory back.
func (d *dataDir) close() {
	_ = d.lock.Close()
	if d.temp {
		_ = os.RemoveAll(d.path)
	}
}
