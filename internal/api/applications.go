package api

import (
	"context"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// Follower is the node's copy of the registry.
type Follower interface {
	Refresh(ctx context.Context) (changed bool, err error)
	Snapshot() *registry.Snapshot
}

// Following reads single records afresh, and lists from the node's own copy of the
// registry, which it brings up to date first: one bucket request for a list, and
// one more for each record that changed, however many applications there are.
func Following(fresh interface {
	Application(ctx context.Context, name string) (scafo.Application, error)
}, f Follower,
) Applications {
	return following{application: fresh.Application, f: f}
}

type following struct {
	application func(ctx context.Context, name string) (scafo.Application, error)
	f           Follower
}

func (l following) Application(ctx context.Context, name string) (scafo.Application, error) {
	return l.application(ctx, name)
}

func (l following) Applications(ctx context.Context) ([]scafo.Application, error) {
	if _, err := l.f.Refresh(ctx); err != nil {
		return nil, err
	}
	s := l.f.Snapshot()
	list := make([]scafo.Application, 0, len(s.Applications))
	for _, a := range s.Applications {
		list = append(list, a)
	}
	return list, nil
}
