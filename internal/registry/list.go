package registry

import (
	"context"
	"errors"
	"maps"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/bucket"
)

// readers is how many documents are read at once.
const readers = 16

// loadAll reads every document under a prefix, in key order. Documents that were
// removed are left out, and those that cannot be read are reported to the log:
// one of them must not hide all others.
func loadAll[T any, P Record[T]](ctx context.Context, r *Registry, prefix string) ([]Doc[T], error) {
	infos, err := r.list(ctx, prefix)
	if err != nil {
		return nil, err
	}
	docs := make([]Doc[T], len(infos))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, info := range infos {
		g.Go(func() error {
			d, err := Load[T, P](gctx, r, info.Key)
			if err != nil && r.leaveAlone(info.Key, err) {
				return nil
			}
			docs[i] = d
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := docs[:0]
	for _, d := range docs {
		if d.Exists {
			out = append(out, d)
		}
	}
	return out, nil
}

// leaveAlone reports a document that cannot be read; it is false for every other
// error.
func (r *Registry) leaveAlone(key string, err error) bool {
	var newer *NewerError
	var corrupt *CorruptError
	if !errors.As(err, &newer) && !errors.As(err, &corrupt) {
		return false
	}
	r.log.Error("a document of the registry is left alone", "event", "document.unreadable", "key", key, "err", err)
	return true
}

func (r *Registry) list(ctx context.Context, prefix string) ([]bucket.Info, error) {
	var infos []bucket.Info
	err := bucket.Walk(ctx, r.b, prefix, func(i bucket.Info) error {
		infos = append(infos, i)
		return nil
	})
	if err != nil {
		return nil, unavailable(err, "listing "+prefix)
	}
	return infos, nil
}

func cloneMap[V any](m map[string]V) map[string]V { return maps.Clone(m) }
