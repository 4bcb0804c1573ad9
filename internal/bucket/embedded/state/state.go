// Package state is what the embedded store keeps in a state directory beside its
// data: the endpoint and credential that stay for good, the record of the
// process that serves, and the lock that lets only one process serve.
//
//	bucket/               the objects, each a file at its key below the bucket's name
//	bucket.json           port, bucket, region and credential; made once
//	bucket.process.json   the serving process, while there is one
//	bucket.lock           held by the serving process
//	bucket.log            what the serving process prints
package state

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// The names in a state directory.
const (
	dataDir     = "bucket"
	configFile  = "bucket.json"
	processFile = "bucket.process.json"
	lockFile    = "bucket.lock"
	logFile     = "bucket.log"
)

// Modes of what is kept here: nobody else reads it.
const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
)

// HealthPath answers 200 without a signature while the store serves. No bucket
// can have this name.
const HealthPath = "/.scafo-health"

// Where the port of a new store is looked for: below the ports that Linux gives
// to outgoing connections (from 32768), so that none of those sits on it when
// the store starts again, and above those that runtimes take (20000-29999).
const (
	lowestPort  = 30000
	highestPort = 32767
	portTries   = 200
)

// What a new store is called.
const (
	bucketName = "scafo"
	regionName = "us-east-1"
)

const version = 1

// Dir is a state directory, absolute.
type Dir string

// Open makes the directory if there is none.
func Open(dir string) (Dir, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(abs, dirMode); err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	return Dir(abs), nil
}

// Data is the directory of the objects.
func (d Dir) Data() string { return filepath.Join(string(d), dataDir) }

// Log is the file that the serving process prints to.
func (d Dir) Log() string { return filepath.Join(string(d), logFile) }

// ConfigPath is the file that the configuration is kept in.
func (d Dir) ConfigPath() string { return filepath.Join(string(d), configFile) }

// Config is what stays the same for good.
type Config struct {
	V         int    `json:"v"`
	Port      int    `json:"port"`
	Bucket    string `json:"bucket"`
	Region    string `json:"region"`
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
}

// Address is where the store listens: on loopback alone.
func (c Config) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port)) }

// URL is the base URL of the store.
func (c Config) URL() string { return "http://" + c.Address() }

// LoadConfig reads the configuration; the error is fs.ErrNotExist when there is
// none yet.
func (d Dir) LoadConfig() (Config, error) {
	var c Config
	if err := readJSON(d.ConfigPath(), &c); err != nil {
		return Config{}, err
	}
	switch {
	case c.V > version:
		return Config{}, fmt.Errorf("%s was written by a newer release (v %d)", d.ConfigPath(), c.V)
	case c.Port < 1 || c.Port > 65535 || c.Bucket == "" || c.Region == "" || c.AccessKey == "" || c.SecretKey == "":
		return Config{}, fmt.Errorf("%s is incomplete", d.ConfigPath())
	}
	return c, nil
}

// EnsureConfig reads the configuration, or makes one. Only the holder of the
// lock may call it.
func (d Dir) EnsureConfig() (Config, error) {
	c, err := d.LoadConfig()
	if !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	port, err := freePort()
	if err != nil {
		return Config{}, err
	}
	c = Config{
		V: version, Port: port, Bucket: bucketName, Region: regionName,
		AccessKey: "scafo" + randomHex(10), SecretKey: randomHex(32),
	}
	return c, writeJSON(d.ConfigPath(), c)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b)
}

func freePort() (int, error) {
	for range portTries {
		n, err := rand.Int(rand.Reader, big.NewInt(highestPort-lowestPort+1))
		if err != nil {
			return 0, err
		}
		port := lowestPort + int(n.Int64())
		if Free(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d on 127.0.0.1", lowestPort, highestPort)
}

// Free says whether the port can be listened on.
func Free(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// Process is the record of a serving process.
type Process struct {
	V int `json:"v"`
	Identity
}

// LoadProcess reads the record; ok is false when there is none or the process
// that it names is gone.
func (d Dir) LoadProcess() (p Process, ok bool) {
	if err := readJSON(filepath.Join(string(d), processFile), &p); err != nil {
		return Process{}, false
	}
	return p, p.Alive()
}

// RecordProcess says that this very process serves. The store must answer
// already: whoever waits for it looks at this record.
func (d Dir) RecordProcess() error {
	id, err := Self()
	if err != nil {
		return err
	}
	return writeJSON(filepath.Join(string(d), processFile), Process{V: version, Identity: id})
}

// ForgetProcess removes the record. Only the holder of the lock may call it.
func (d Dir) ForgetProcess() error {
	err := os.Remove(filepath.Join(string(d), processFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path) //nolint:gosec // a path of our own making
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file, so that a reader sees the old content or the new
// one, also after a power loss.
func writeJSON(path string, v any) (err error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(append(b, '\n')); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir puts the names in a directory on the disk.
func SyncDir(dir string) error {
	f, err := os.Open(dir) //nolint:gosec // a path of our own making
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
