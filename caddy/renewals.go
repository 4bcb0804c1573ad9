package caddy

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

const (
	// lookTimeout bounds one look at the storage, and lookAgain is how soon it is
	// looked at again after a look that failed.
	lookTimeout = 30 * time.Second
	lookAgain   = 10 * time.Second
	// lookOneByOne is up to how many hosts are looked for one by one; for more of them
	// the storage is listed.
	lookOneByOne = 32
	// certificatesPrefix is where certmagic keeps certificates, by issuer and host.
	certificatesPrefix = "certificates"
)

// renewals know which hosts have a certificate already, of those that some fleet knows
// and nobody serves at the moment. The certificate of such a host may be renewed:
// certmagic asks before it renews and before it loads, and drops a certificate that is
// still good when it hears no. A handshake is answered from memory; the storage is
// looked at in the background, when a document changes.
type renewals struct {
	storage certmagic.Storage
	log     *zap.Logger

	mu sync.RWMutex
	// have are the hosts that have a certificate, as far as is known: it was seen in the
	// storage, or this process has just allowed one. Guarded by mu.
	have map[string]bool
	// looked are the hosts that were looked for since nobody serves them. Only look
	// touches it.
	looked map[string]bool
}

func newRenewals(s certmagic.Storage, log *zap.Logger) *renewals {
	return &renewals{storage: s, log: log, have: map[string]bool{}, looked: map[string]bool{}}
}

// allowed is told of a host that may have a certificate since it is served.
func (r *renewals) allowed(host string) {
	if r.renewable(host) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have[host] = true
}

// renewable reports whether the host has a certificate.
func (r *renewals) renewable(host string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.have[host]
}

// look brings the memory up to date with the documents: served and unserved are the
// exact hosts that they name. What they name no more is forgotten.
func (r *renewals) look(ctx context.Context, served func(host string) bool, unserved []string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	now := make(map[string]bool, len(unserved))
	var missing []string
	for _, host := range unserved {
		now[host] = true
		if !r.looked[host] {
			missing = append(missing, host)
		}
	}
	maps.DeleteFunc(r.looked, func(host string, _ bool) bool { return !now[host] })
	r.mu.Lock()
	maps.DeleteFunc(r.have, func(host string, _ bool) bool { return !now[host] && !served(host) })
	r.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	found, err := r.find(ctx, missing)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, host := range missing {
		r.looked[host] = true
		if found[host] {
			r.have[host] = true
		} else {
			delete(r.have, host) // it was allowed, and no certificate came of it
		}
	}
	return nil
}

// find is which of the hosts have a certificate in the storage, of whichever issuer.
func (r *renewals) find(ctx context.Context, hosts []string) (map[string]bool, error) {
	issuers, err := r.list(ctx, certificatesPrefix)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, issuer := range issuers {
		if len(hosts) > lookOneByOne {
			stored, err := r.list(ctx, path.Join(certificatesPrefix, issuer))
			if err != nil {
				return nil, err
			}
			for _, host := range hosts {
				if _, ok := slices.BinarySearch(stored, certmagic.StorageKeys.Safe(host)); ok {
					found[host] = true
				}
			}
			continue
		}
		for _, host := range hosts {
			_, err := r.storage.Stat(ctx, certmagic.StorageKeys.SiteCert(issuer, host))
			switch {
			case err == nil:
				found[host] = true
			case !errors.Is(err, fs.ErrNotExist):
				return nil, err
			}
		}
	}
	return found, nil
}

// list is the last elements of the keys right below a prefix, sorted.
func (r *renewals) list(ctx context.Context, prefix string) ([]string, error) {
	keys, err := r.storage.List(ctx, prefix, false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for i, k := range keys {
		keys[i] = path.Base(k)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// followRenewals looks whenever a document changes, until ctx ends.
func (a *App) followRenewals(ctx context.Context, changed <-chan struct{}) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again.C:
		}
		again.Stop()
		if err := a.lookForCertificates(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("cannot tell which hosts that nobody serves have a certificate; tried again", zap.Error(err))
			again.Reset(lookAgain)
		}
	}
}

func (a *App) lookForCertificates(ctx context.Context) error {
	var tables []*table
	for _, p := range a.pollers {
		if t := p.table.Load(); t != nil {
			tables = append(tables, t)
		}
	}
	served := func(host string) bool {
		return slices.ContainsFunc(tables, func(t *table) bool { return t.issuable(host) })
	}
	var unserved []string
	for _, t := range tables {
		for host, e := range t.exact {
			if e.unserved != "" && !served(host) {
				unserved = append(unserved, host)
			}
		}
	}
	slices.Sort(unserved)
	return a.renewals.look(ctx, served, slices.Compact(unserved))
}
