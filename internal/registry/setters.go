package registry

import (
	"context"
	"maps"

	"github.com/scafo/scafo"
)

// The setters change one thing of an application, by one compare-and-swap. A
// missing one is not-found, one whose deletion has begun application-deleting.
// What already is as it shall be is not written again; changed says whether
// anything was, also beside an error: then the change could not be announced.

// BlockApplication stops an application; the stamp of an earlier block stays.
func (r *Registry) BlockApplication(ctx context.Context, name, by string) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		if a.Blocked != nil {
			return false
		}
		a.Blocked = &scafo.Stamp{At: r.Now(), By: by}
		return true
	})
}

// UnblockApplication takes a block away; everything else is as it was before.
func (r *Registry) UnblockApplication(ctx context.Context, name string) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		was := a.Blocked != nil
		a.Blocked = nil
		return was
	})
}

// RetireApplication begins an application's retirement; the stamp of an earlier
// one stays, since its grace period counts from there.
func (r *Registry) RetireApplication(ctx context.Context, name, by string) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		if a.Retired != nil {
			return false
		}
		a.Retired = &scafo.Stamp{At: r.Now(), By: by}
		return true
	})
}

// UnretireApplication ends an application's retirement.
func (r *Registry) UnretireApplication(ctx context.Context, name string) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		was := a.Retired != nil
		a.Retired = nil
		return was
	})
}

// LabelApplication replaces all labels of an application.
func (r *Registry) LabelApplication(ctx context.Context, name string, labels map[string]string) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		changed := !maps.Equal(a.Labels, labels)
		a.Labels = maps.Clone(labels)
		return changed
	})
}

// SelectNodes sets which labels a node must have to run an application; nil and an
// empty map lift the constraint.
func (r *Registry) SelectNodes(ctx context.Context, name string, selector map[string]string) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		changed := !maps.Equal(a.Selector, selector)
		a.Selector = maps.Clone(selector)
		return changed
	})
}

// ScaleApplication sets how many nodes serve an application.
func (r *Registry) ScaleApplication(ctx context.Context, name string, replicas scafo.Replicas) (app scafo.Application, changed bool, err error) {
	return r.set(ctx, name, func(a *scafo.Application) bool {
		changed := a.Replicas != replicas
		a.Replicas = replicas
		return changed
	})
}

// set changes an application where change has something to do.
func (r *Registry) set(ctx context.Context, name string, change func(*scafo.Application) bool) (app scafo.Application, changed bool, err error) {
	read := ""
	app, err = r.UpdateApplication(ctx, name, func(a *scafo.Application) error {
		read = a.Write
		if changed = change(a); !changed {
			return ErrKeep
		}
		return nil
	})
	return app, changed && app.Write != read, err
}
