package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// What workerd's cluster mode keeps below its prefix. Each start is a new member
// with a record of its own; a member whose lease has not run out owns its
// objects, whether it lives or not.
const nodesPrefix = "v1/nodes/"

// member is the record of one workerd, as far as it matters here.
type member struct {
	Address   string `json:"address"`
	ExpiresMS int64  `json:"expires_ms"`
	Draining  bool   `json:"draining"`
}

// maxMembers bounds how many records are read at once.
const maxMembers = 256

// seenMember is a record with its place and its age.
type seenMember struct {
	member
	key string
	age time.Duration // since it was last written, by the store's own clock
}

// recordsOf is how old a record may be that says something of a lease.
const recordsOf = time.Hour

// members reads the records that were written within that time.
func members(ctx context.Context, b bucket.Bucket, prefix string, within time.Duration, now time.Time) ([]seenMember, error) {
	var keys []string
	err := bucket.Walk(ctx, b, prefix+nodesPrefix, func(i bucket.Info) error {
		if strings.HasSuffix(i.Key, ".json") && now.Sub(i.Modified) < within {
			keys = append(keys, i.Key)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(keys) > maxMembers {
		return nil, fmt.Errorf("%d records of members", len(keys))
	}
	found := make([]*seenMember, len(keys))
	errs := make([]error, len(keys))
	var wg sync.WaitGroup
	limit := make(chan struct{}, 8)
	for i, key := range keys {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			o, err := b.Get(ctx, key)
			if err != nil {
				if !errors.Is(err, bucket.ErrNotFound) {
					errs[i] = err
				}
				return
			}
			m := seenMember{key: key, age: now.Sub(o.Modified)}
			if !o.Date.IsZero() {
				m.age = o.Date.Sub(o.Modified)
			}
			if json.Unmarshal(o.Body, &m.member) == nil {
				found[i] = &m
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var all []seenMember
	for _, m := range found {
		if m != nil {
			all = append(all, *m)
		}
	}
	return all, nil
}

// holds reports whether the record is of one that has not left.
func (m member) holds() bool { return m.ExpiresMS != 0 && !m.Draining }

// findMember finds the record of the member that is reached at address. While
// the process runs, nobody else has that address, so the one live record with it
// is its own; if there are several, an earlier process had the same port, and
// none is certain.
func findMember(ctx context.Context, b bucket.Bucket, prefix, address string, now time.Time) (string, error) {
	all, err := members(ctx, b, prefix, recordsOf, now)
	if err != nil {
		return "", err
	}
	match := ""
	for _, m := range all {
		switch {
		case m.Address != address || !m.holds():
		case match != "":
			return "", fmt.Errorf("several members have the address %s", address)
		default:
			match = m.key
		}
	}
	if match == "" {
		return "", fmt.Errorf("no member has the address %s", address)
	}
	return match, nil
}

// lapsed says how long ago leases ran out of members that did not leave.
func lapsed(ctx context.Context, b bucket.Bucket, prefix string, lease time.Duration, now time.Time) ([]time.Duration, error) {
	all, err := members(ctx, b, prefix, recordsOf, now)
	if err != nil {
		return nil, err
	}
	var out []time.Duration
	for _, m := range all {
		if ago := m.age - lease; m.holds() && ago > lapseSlack {
			out = append(out, ago)
		}
	}
	return out, nil
}

// lapseSlack is for the seconds of a store's Last-Modified, and for a renewal
// that took its time.
const lapseSlack = 3 * time.Second

// releaseTries is how often a release is tried against a record that changes: a
// renewal which the dead process had sent may still arrive once.
const releaseTries = 4

// releaseMember ends the lease of a member that has certainly ended, the way it
// would have done itself, so that its objects need not wait for the lease to run
// out. It is a conditional write on the record that was read: a renewal still
// under way is refused after it, or makes it look again.
//
// The caller must have reaped that very process, or know by its identity that it
// is gone. For a frozen or unreachable one it would give its objects a second
// owner.
func releaseMember(ctx context.Context, b bucket.Bucket, key, address string) error {
	for range releaseTries {
		o, err := b.Get(ctx, key)
		if errors.Is(err, bucket.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		body, done, err := left(o.Body, address)
		if err != nil || done {
			return err
		}
		_, err = b.Replace(ctx, key, o.ETag, body)
		if err == nil {
			return nil
		}
		// Refused, or unknown: what the record says now decides.
		if !errors.Is(err, bucket.ErrRefused) && !errors.Is(err, bucket.ErrUnknown) {
			return err
		}
	}
	return fmt.Errorf("%s keeps changing", key)
}

// left is a member's record as an orderly leave writes it. Every other value
// stays as it is spelled: one of them is a number beyond 2^53.
func left(body []byte, address string) (out []byte, done bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, false, fmt.Errorf("a member's record: %w", err)
	}
	var m member
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, false, fmt.Errorf("a member's record: %w", err)
	}
	if fields["expires_ms"] == nil || fields["draining"] == nil || m.Address == "" {
		return nil, false, errors.New("a member's record has another form than this program knows")
	}
	if m.Address != address {
		return nil, false, fmt.Errorf("the record is of %s, not of %s", m.Address, address)
	}
	if m.ExpiresMS == 0 && m.Draining {
		return nil, true, nil
	}
	fields["expires_ms"], fields["draining"] = json.RawMessage("0"), json.RawMessage("true")
	out, err = json.Marshal(fields)
	return out, false, err
}
