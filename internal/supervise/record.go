package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/scafo/scafo"
)

// What one application has under <state>/apps/<uid>/.
const (
	appsDir     = "apps"
	recordFile  = "record.json"
	lockFile    = "lock"    // each process inherits a lock on it
	dataDir     = "data"    // CELLD_WATCH
	assetsDir   = "assets"  // CELLD_ASSET_CACHE_DIR
	outFile     = "out.log" // what the process wrote to standard output
	errFile     = "err.log"
	offsetsFile = "offsets" // how far both were read
)

var uidRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

func validUID(uid string) bool { return uidRule.MatchString(uid) }

// record is what the next daemon must know of a process. It is written before the
// process starts (without a pid), once it runs, and when it ended.
type record struct {
	V           int       `json:"v"`
	Application string    `json:"application"`
	UID         string    `json:"uid"`
	PID         int       `json:"pid,omitempty"`
	BootID      string    `json:"bootId,omitempty"`
	StartTicks  uint64    `json:"startTicks,omitempty"` // since that boot, as the kernel counts
	StartedAt   time.Time `json:"startedAt,omitzero"`
	Listen      string    `json:"listen,omitempty"`
	Internal    string    `json:"internalListen,omitempty"`
	Celld       string    `json:"celldVersion,omitempty"`
	// Version is the one that was wanted when it was started.
	Version  string `json:"version,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	Crashes  int    `json:"crashes,omitempty"`
	// Exit is how the process ended; nil while it runs, as far as anybody knows.
	Exit *scafo.Exit `json:"exit,omitempty"`
}

const recordVersion = 1

func readRecord(dir string) (record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("%s: %w", recordFile, err)
	}
	if r.V > recordVersion {
		return record{}, fmt.Errorf("%s has version %d, newer than this release", recordFile, r.V)
	}
	return r, nil
}

// writeRecord replaces the record in one step: a daemon that dies leaves the old
// one or the new one.
func writeRecord(dir string, r record) error {
	r.V = recordVersion
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, recordFile+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, recordFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func removeRecord(dir string) error {
	err := os.Remove(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweepTemporary removes what a daemon left that died while it wrote a record.
func sweepTemporary(dir string) {
	left, err := filepath.Glob(filepath.Join(dir, recordFile+".*"))
	if err != nil {
		return
	}
	for _, f := range left {
		os.Remove(f) //nolint:errcheck,gosec // the next daemon sweeps again
	}
}

// nodeName is CELLD_NODE: the same for a machine and an application's uid, also
// after the node was renamed. A new one on an old address can block recovery.
func nodeName(machine, uid string) string {
	sum := sha256.Sum256([]byte(machine + "\x00" + uid))
	return "n" + hex.EncodeToString(sum[:12])
}
