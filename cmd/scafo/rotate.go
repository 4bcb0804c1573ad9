package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// operatorCalls are the calls that a rotation makes under one key.
type operatorCalls interface {
	Operators(ctx context.Context) (client.OperatorList, error)
	AddOperator(ctx context.Context, g client.Grant) (scafo.Operator, error)
	RemoveOperator(ctx context.Context, id string) error
}

// rotation replaces an operator's key by a fresh one, in steps of which each leaves
// a state that the next run recognises:
//
//  1. the new key is written beside the old one
//  2. the old key registers it as its replacement
//  3. the new key is tried
//  4. the new key's file takes the old one's place
//  5. the new key revokes the old one
//
// The key file holds a key that works at every moment, and the old key is given up
// only once the new one was seen to work.
type rotation struct {
	path string // the key file
	id   string // of the new key; empty makes one up
	call func(k keyfile.Key) (operatorCalls, error)
	// patience is how long a registered key may take to be known everywhere.
	patience time.Duration
}

// rotated is what a rotation did.
type rotated struct {
	Operator string `json:"operator"`
	Replaced string `json:"replaced"`
	KeyFile  string `json:"keyFile"`
	// Resumed says that it completed one that had been cut short.
	Resumed bool `json:"resumed,omitempty"`
}

// nextSuffix names the new key's file until it takes the old one's place.
const nextSuffix = ".next"

func (r *rotation) run(ctx context.Context) (rotated, error) {
	unlock, err := lockFolder(filepath.Dir(r.path))
	if err != nil {
		return rotated{}, err
	}
	defer unlock()
	old, _, err := keyfile.Load(r.path)
	if err != nil {
		return rotated{}, err
	}
	asOld, err := r.call(old)
	if err != nil {
		return rotated{}, err
	}
	next, _, err := keyfile.Load(r.path + nextSuffix)
	resumed := err == nil
	if errors.Is(err, fs.ErrNotExist) {
		done, found, err := r.finish(ctx, asOld, old)
		if found || err != nil {
			return done, err
		}
		next, err = r.begin(old)
		if err != nil {
			return rotated{}, err
		}
	} else if err != nil {
		return rotated{}, err
	}
	_, failure := asOld.AddOperator(ctx, client.Grant{ID: next.ID, PublicKey: next.Public(), Supersedes: old.ID})
	if failure != nil && (scafo.CodeOf(failure) != scafo.CodeAuthInvalid || !resumed) {
		if refused(failure) && !resumed {
			_ = os.Remove(r.path + nextSuffix) // nobody knows this key
		}
		return rotated{}, failure
	}
	asNew, err := r.call(next)
	if err != nil {
		return rotated{}, err
	}
	if err := r.try(ctx, asNew); err != nil {
		if failure != nil {
			return rotated{}, failure // the old key is refused, and the new one does not work either
		}
		return rotated{}, err
	}
	if err := r.replace(next); err != nil {
		return rotated{}, err
	}
	return rotated{Operator: next.ID, Replaced: old.ID, KeyFile: r.path, Resumed: resumed}, revoke(ctx, asNew, old.ID)
}

// lockFolder keeps two rotations on this machine apart: each would register a key of
// its own in the other's place, and one of the two would stay trusted. The folder is
// locked and not the key file, which is replaced. The kernel frees the lock, however
// the process ends.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("the folder %s cannot be locked: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// finish completes a rotation of which only the last step was missing: the key that
// the present one replaced is still trusted.
func (r *rotation) finish(ctx context.Context, calls operatorCalls, k keyfile.Key) (done rotated, found bool, err error) {
	list, err := calls.Operators(ctx)
	if err != nil {
		return done, false, err
	}
	replaced := ""
	for _, op := range list.Operators {
		if op.ID == k.ID {
			replaced = op.Supersedes
		}
	}
	for _, op := range list.Operators {
		if replaced != "" && op.ID == replaced {
			return rotated{Operator: k.ID, Replaced: replaced, KeyFile: r.path, Resumed: true}, true, revoke(ctx, calls, replaced)
		}
	}
	return done, false, nil
}

// begin makes the new key and writes it beside the old one.
func (r *rotation) begin(old keyfile.Key) (keyfile.Key, error) {
	id := r.id
	if id == "" {
		id = successor(old.ID)
	}
	k, err := keyfile.New(id)
	if err != nil {
		return k, usageError{err}
	}
	err = keyfile.Save(r.path+nextSuffix, k)
	if errors.Is(err, fs.ErrExist) {
		return k, fmt.Errorf("another rotation of %s has just begun: %w", r.path, err)
	}
	return k, err
}

// try waits until the new key is let in.
func (r *rotation) try(ctx context.Context, calls operatorCalls) error {
	const pause = 200 * time.Millisecond
	until := time.Now().Add(r.patience)
	for {
		_, err := calls.Operators(ctx)
		if err == nil || scafo.CodeOf(err) != scafo.CodeAuthInvalid || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// replace puts the new key's file in the old one's place, unless another run has.
func (r *rotation) replace(next keyfile.Key) error {
	err := keyfile.Replace(r.path+nextSuffix, r.path)
	if errors.Is(err, fs.ErrNotExist) {
		if now, _, lerr := keyfile.Load(r.path); lerr == nil && now.ID == next.ID {
			return nil
		}
	}
	return err
}

// revoke removes a key that may be gone already.
func revoke(ctx context.Context, calls operatorCalls, id string) error {
	err := calls.RemoveOperator(ctx, id)
	if scafo.CodeOf(err) == scafo.CodeNotFound {
		return nil
	}
	return err
}

// refused reports whether a node said no, so that what was asked for surely did not
// happen and will not.
func refused(err error) bool {
	a, ok := client.AnswerOf(err)
	return ok && a.Status >= 400 && a.Status < 500
}

var rotatedID = regexp.MustCompile(`^(.+)-[0-9a-f]{6}$`)

// successor is a fresh id for the key that replaces another: ids are claimed for
// good, so each key has its own.
func successor(id string) string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	if m := rotatedID.FindStringSubmatch(id); m != nil {
		id = m[1]
	}
	suffix := "-" + hex.EncodeToString(b[:])
	if most := scafo.MaxNameLength - len(suffix); len(id) > most {
		id = id[:most]
	}
	return id + suffix
}
