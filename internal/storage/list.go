package storage

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
)

// List is the keys beneath a key, in order: those that have a value when recursive,
// otherwise the immediate children, of which one that only others are beneath stands
// there once. Nothing beneath is a not-found. The key itself is not beneath itself.
func (s *Service) List(ctx context.Context, k Key, recursive bool) ([]string, error) {
	var keys []string
	err := s.walk(purpose(ctx), k, func(key string, _ bucket.Info) string {
		if !recursive {
			child := firstBelow(k.text, key)
			if n := len(keys); n > 0 && keys[n-1] == child {
				return child
			}
			key = child
		}
		keys = append(keys, key)
		if recursive {
			return ""
		}
		return key
	})
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, scafo.Errorf(scafo.CodeNotFound, "nothing is kept beneath the key %q", k.text)
	}
	// Neighbours in the bucket are not always neighbours here: p and p/q have p-1
	// between them there.
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// firstBelow is the child of a key that another one is, or is beneath of.
func firstBelow(parent, key string) string {
	from := 0
	if parent != "" {
		from = len(parent) + 1
	}
	if i := strings.IndexByte(key[from:], '/'); i >= 0 {
		return key[:from+i]
	}
	return key
}

// behindAll sorts behind every character of an encoded key.
const behindAll = "~"

// How often a listing is tried again, and after which pause.
const (
	listTries = 3
	listPause = 100 * time.Millisecond
)

// walk calls see for every value beneath a key, in the bucket's order. see may name
// a key that is known well enough: what else is beneath that is left out where this
// saves requests.
func (s *Service) walk(ctx context.Context, k Key, see func(key string, i bucket.Info) (enough string)) error {
	prefix := k.beneath()
	o := bucket.ListOptions{}
	for {
		page, err := s.page(ctx, prefix, o)
		if err != nil {
			return err
		}
		enough := ""
		for _, i := range page.Objects {
			if i.Size < leastObject {
				continue // a tombstone
			}
			if key, ok := decode(strings.TrimPrefix(i.Key, ObjectPrefix)); ok {
				enough = see(key, i)
			}
		}
		if page.Next == "" {
			return nil
		}
		o.After = page.Next
		if enough == "" {
			continue
		}
		last := page.Objects[len(page.Objects)-1].Key
		if known, err := ParseKey(enough); err == nil && strings.HasPrefix(last, known.beneath()) {
			o.After = known.beneath() + behindAll
		}
	}
}

func (s *Service) page(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	for try := 1; ; try++ {
		page, err := s.r.Bucket().List(ctx, prefix, o)
		if err == nil {
			return page, nil
		}
		if try == listTries || ctx.Err() != nil || errors.Is(err, bucket.ErrDenied) || errors.Is(err, bucket.ErrInvalid) {
			return bucket.Page{}, away(err, "listing "+prefix)
		}
		t := time.NewTimer(listPause)
		select {
		case <-ctx.Done():
			t.Stop()
			return bucket.Page{}, away(ctx.Err(), "listing "+prefix)
		case <-t.C:
		}
	}
}
