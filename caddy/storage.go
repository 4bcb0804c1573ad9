package caddy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(Storage{})
}

// Storage keeps certificates and everything else that Caddy stores in the bucket of
// a fleet, through its nodes, so that all ingresses of the fleet share them.
type Storage struct {
	// Nodes are base URLs of nodes' APIs. One is asked at a time; the next one when it
	// does not answer, or cannot.
	Nodes []string `json:"nodes"`
	// Token is the ingress token. Placeholders are replaced.
	Token string `json:"token,omitempty"`
	// EncryptionKeys encrypt what is stored: the first one everything that is written,
	// all of them what is read. They are secrets of any form, at least 16 characters
	// long, the same on each ingress. Placeholders are replaced. What was stored before
	// there was a key is still read.
	EncryptionKeys []string `json:"encryption_keys,omitempty"`
	// LockLease is after how long a lock is free again whose holder has died. While it
	// lives it renews the lock. The default is a minute.
	LockLease caddy.Duration `json:"lock_lease,omitempty"`

	shared *sharedStorage
}

const (
	// defaultLockLease outlasts a pause of a busy machine, and not the patience of
	// who waits for a certificate.
	defaultLockLease = time.Minute
	// leastLockLease is three renewals with time for each.
	leastLockLease = 3 * time.Second
	// leastSecret is the least length of an encryption key.
	leastSecret = 16
	// askAgainAfter is for how long after a failure nobody is asked whether a key is there.
	askAgainAfter = 5 * time.Second
)

// CaddyModule returns the module's information.
func (Storage) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.storage.scafo", New: func() caddy.Module { return new(Storage) }}
}

// Provision makes the storage.
func (s *Storage) Provision(ctx caddy.Context) error {
	repl := caddy.NewReplacer()
	nodes := make([]string, len(s.Nodes))
	for i, n := range s.Nodes {
		nodes[i] = strings.TrimRight(repl.ReplaceAll(n, ""), "/")
	}
	secrets := make([]string, len(s.EncryptionKeys))
	for i, k := range s.EncryptionKeys {
		secrets[i] = strings.TrimSpace(repl.ReplaceAll(k, ""))
	}
	token := strings.TrimSpace(repl.ReplaceAll(s.Token, ""))
	lease := time.Duration(s.LockLease)
	if lease == 0 {
		lease = defaultLockLease
	}
	if err := checkStorage(nodes, token, secrets, lease); err != nil {
		return err
	}
	sealer, err := newSealer(secrets)
	if err != nil {
		return err
	}
	s.shared = &sharedStorage{
		nodes: newStorageClient(nodes, token), sealer: sealer, lease: lease, log: ctx.Logger(),
		locks: locks{held: map[string][]*heldLock{}},
	}
	return s.shared.nodes.counted.register(ctx.GetMetricsRegistry())
}

func checkStorage(nodes []string, token string, secrets []string, lease time.Duration) error {
	if len(nodes) == 0 {
		return errors.New("the storage names no node")
	}
	for _, n := range nodes {
		u, err := url.Parse(n)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return fmt.Errorf("the storage's node %q is no base URL", n)
		}
	}
	if token == "" {
		return errors.New("the storage has no token")
	}
	for _, k := range secrets {
		if len(k) < leastSecret {
			return fmt.Errorf("an encryption key of fewer than %d characters is guessable", leastSecret)
		}
	}
	if lease < leastLockLease {
		return fmt.Errorf("a lock's lease is at least %s", leastLockLease)
	}
	return nil
}

// Cleanup lets the connections go. Locks that are still held are renewed until
// whoever has them gives them back.
func (s *Storage) Cleanup() error {
	if s.shared != nil {
		s.shared.nodes.http.CloseIdleConnections()
	}
	return nil
}

// CertMagicStorage is the storage for Caddy.
func (s *Storage) CertMagicStorage() (certmagic.Storage, error) { return s.shared, nil }

// UnmarshalCaddyfile reads
//
//	storage scafo {
//		node           <url> [<url>...]
//		token          <ingress token>
//		encryption_key <secret> [<older secret>...]
//		lock_lease     <duration>
//	}
func (s *Storage) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "node":
			nodes := d.RemainingArgs()
			if len(nodes) == 0 {
				return d.ArgErr()
			}
			s.Nodes = append(s.Nodes, nodes...)
		case "token":
			if !d.Args(&s.Token) {
				return d.ArgErr()
			}
		case "encryption_key":
			keys := d.RemainingArgs()
			if len(keys) == 0 {
				return d.ArgErr()
			}
			s.EncryptionKeys = append(s.EncryptionKeys, keys...)
		case "lock_lease":
			if !d.NextArg() {
				return d.ArgErr()
			}
			lease, err := caddy.ParseDuration(d.Val())
			if err != nil {
				return d.Errf("lock_lease: %v", err)
			}
			s.LockLease = caddy.Duration(lease)
		default:
			return d.Errf("unrecognized subdirective %q", d.Val())
		}
	}
	return nil
}

// sharedStorage is certmagic's storage. It has no exported field, since certmagic
// logs its storages.
type sharedStorage struct {
	nodes  *storageClient
	sealer *sealer // nil stores plainly
	lease  time.Duration
	log    *zap.Logger
	// askAgain is before when Exists asks no node, in nanoseconds of Unix time.
	askAgain atomic.Int64

	locks
}

func (s *sharedStorage) String() string { return "scafo:" + strings.Join(s.nodes.urls, ",") }

// checkKey refuses what would name the root, or nothing.
func checkKey(key string) error {
	if key == "" || strings.HasPrefix(key, "/") || strings.HasSuffix(key, "/") {
		return fmt.Errorf("%q is not a key of the storage", key)
	}
	return nil
}

// Store puts a value at a key.
func (s *sharedStorage) Store(ctx context.Context, key string, value []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	_, err := s.nodes.do(ctx, call{operation: "store", method: http.MethodPut, path: objectPath(key), body: s.sealer.seal(key, value)})
	return describe("storing", key, err)
}

// Load is the value at a key.
func (s *sharedStorage) Load(ctx context.Context, key string) ([]byte, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	a, err := s.nodes.do(ctx, call{operation: "load", method: http.MethodGet, path: objectPath(key), kind: bytesKind})
	if err != nil {
		return nil, describe("loading", key, err)
	}
	value, err := s.sealer.open(key, a.body)
	return value, describe("loading", key, err)
}

// Delete removes a key and everything beneath it.
func (s *sharedStorage) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	_, err := s.nodes.do(ctx, call{operation: "delete", method: http.MethodDelete, path: objectPath(key)})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return describe("deleting", key, err)
}

// Exists reports whether a key has a value or others are beneath it. What cannot be
// found out counts as there: certmagic asks in a handshake whether the certificate that
// it is about to renew was removed, and would leave a good one for an order that it waits
// for. For the same reason each node is asked once, and for a while after a failure none.
func (s *sharedStorage) Exists(ctx context.Context, key string) bool {
	if checkKey(key) != nil {
		return false
	}
	if now := time.Now().UnixNano(); now < s.askAgain.Load() {
		return true
	}
	_, err := s.nodes.stat(ctx, key, true)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.askAgain.Store(time.Now().Add(askAgainAfter).UnixNano())
		s.log.Warn("the storage could not be asked whether a key is there; taken for there", zap.String("key", key), zap.Error(err))
		return true
	}
	return err == nil
}

// Stat tells what is known of a key.
func (s *sharedStorage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	info, err := s.stat(ctx, key)
	if err != nil || !info.IsTerminal || s.sealer == nil {
		return info, err
	}
	// What is stored is longer than the value, if it is encrypted.
	value, err := s.Load(ctx, key)
	info.Size = int64(len(value))
	return info, err
}

func (s *sharedStorage) stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	if err := checkKey(key); err != nil {
		return certmagic.KeyInfo{}, err
	}
	st, err := s.nodes.stat(ctx, key, false)
	if err != nil {
		return certmagic.KeyInfo{}, describe("looking at", key, err)
	}
	return certmagic.KeyInfo{Key: st.Key, Modified: st.Modified, Size: st.Size, IsTerminal: st.IsTerminal}, nil
}

// List is the keys beneath a prefix, and with recursive the directories on the way
// to them too.
func (s *sharedStorage) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	prefix = strings.TrimSuffix(prefix, "/")
	keys, err := s.nodes.list(ctx, prefix, recursive)
	if err != nil {
		return nil, describe("listing", prefix, err)
	}
	if !recursive {
		return keys, nil
	}
	seen := make(map[string]bool, len(keys))
	for _, k := range keys {
		seen[k] = true
	}
	for _, k := range slices.Clone(keys) {
		for dir := path.Dir(k); dir != "." && dir != prefix && !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			keys = append(keys, dir)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// describe says what failed with which key; the error stays one that the key does
// not exist, if it was.
func describe(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", what, key, err)
}

var (
	_ caddy.Provisioner          = (*Storage)(nil)
	_ caddy.CleanerUpper         = (*Storage)(nil)
	_ caddy.StorageConverter     = (*Storage)(nil)
	_ caddyfile.Unmarshaler      = (*Storage)(nil)
	_ certmagic.Storage          = (*sharedStorage)(nil)
	_ certmagic.TryLocker        = (*sharedStorage)(nil)
	_ certmagic.LockLeaseRenewer = (*sharedStorage)(nil)
)
