// Package registry keeps the documents of a fleet in its bucket: their keys and
// their form, and the loops that change them by compare-and-swap alone. Nothing
// here decides anything: the rules of who may write what are those that keep two
// writers at once from destroying each other's work.
package registry

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
)

// Options are what a registry takes from its surroundings. The zero value reads
// the system's clock and randomness and logs nothing.
type Options struct {
	Now  func() time.Time // stamps of documents; the default is time.Now
	Rand io.Reader        // nonces, uids and jitter; the default is crypto/rand
	Log  *slog.Logger
	Node string // who writes, for the log
}

// Registry reads and changes the documents of one fleet.
type Registry struct {
	b    bucket.Bucket
	now  func() time.Time
	log  *slog.Logger
	tell announcer

	mu   sync.Mutex
	rand io.Reader // guarded by mu
	// beat is this node's heartbeat as it last wrote it, so that a renewal is one
	// request; guarded by mu.
	beat Doc[scafo.Heartbeat]
	// operators are those that were asked for by themselves, as they were last read;
	// guarded by mu.
	operators map[string]Doc[scafo.Operator]
}

// New makes a registry over a bucket.
func New(b bucket.Bucket, o Options) *Registry {
	r := &Registry{b: b, now: o.Now, rand: o.Rand, log: o.Log, operators: map[string]Doc[scafo.Operator]{}}
	if r.now == nil {
		r.now = time.Now
	}
	if r.rand == nil {
		r.rand = rand.Reader
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if o.Node != "" {
		r.log = r.log.With("node", o.Node)
	}
	return r
}

// Bucket is the bucket beneath.
func (r *Registry) Bucket() bucket.Bucket { return r.b }

// Now is the time that documents are stamped with, in whole milliseconds of UTC.
func (r *Registry) Now() time.Time { return r.now().UTC().Truncate(time.Millisecond) }

// ErrKeep is what a change returns that has nothing to write.
var ErrKeep = errors.New("nothing to write")

// Nonce is n random bytes in hex.
func (r *Registry) Nonce(n int) string {
	b := make([]byte, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := io.ReadFull(r.rand, b); err != nil {
		// crypto/rand never fails, and a test's source must not either: a nonce that
		// is not random would make two writes look like one.
		panic("registry: no randomness: " + err.Error())
	}
	return hex.EncodeToString(b)
}

// jitter is a random part of d, at least half of it.
func (r *Registry) jitter(d time.Duration) time.Duration {
	var b [8]byte
	r.mu.Lock()
	_, err := io.ReadFull(r.rand, b[:])
	r.mu.Unlock()
	if err != nil || d <= 1 {
		return d
	}
	half := d / 2
	return half + time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(half+1)) //nolint:gosec // half is positive
}

// pause waits, or ends with the context.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
