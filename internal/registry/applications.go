package registry

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/mistake"
)

// errDeleting is what every change of an application whose deletion has begun is
// refused with.
func errDeleting(name string) error {
	return scafo.Errorf(scafo.CodeApplicationDeleting, "application %s is being deleted", name)
}

func errNoApplication(name string) error {
	return scafo.Errorf(scafo.CodeNotFound, "no application %s", name)
}

// Application is an application's record, or not-found.
func (r *Registry) Application(ctx context.Context, name string) (scafo.Application, error) {
	d, err := r.ApplicationDoc(ctx, name)
	return d.Value, err
}

// ApplicationDoc is Application with its ETag and age.
func (r *Registry) ApplicationDoc(ctx context.Context, name string) (Doc[scafo.Application], error) {
	if _, err := scafo.ParseApplicationName(name); err != nil {
		return Doc[scafo.Application]{}, err
	}
	d, err := Load[scafo.Application](ctx, r, ApplicationKey(name))
	if err == nil && (!d.Exists || d.Value.Name != name) {
		err = errNoApplication(name)
	}
	return d, err
}

// Applications are all applications, in the order of their names.
func (r *Registry) Applications(ctx context.Context) ([]scafo.Application, error) {
	docs, err := loadAll[scafo.Application](ctx, r, ApplicationPrefix)
	if err != nil {
		return nil, err
	}
	out := make([]scafo.Application, 0, len(docs))
	for _, d := range docs {
		out = append(out, d.Value)
	}
	slices.SortFunc(out, func(a, b scafo.Application) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// CreateApplication begins a life of a name, unless it lives already: then its
// record is returned as it is. init, which may be nil, says what is special about
// a new one.
func (r *Registry) CreateApplication(ctx context.Context, name, by string, init func(*scafo.Application)) (app scafo.Application, created bool, err error) {
	d, created, err := r.AddApplication(ctx, name, by, init)
	if err == nil && created {
		err = r.Announce(ctx, ApplicationKey(name))
	}
	return d.Value, created, err
}

// AddApplication is CreateApplication for who announces it with what else changes.
func (r *Registry) AddApplication(ctx context.Context, name, by string, init func(*scafo.Application)) (d Doc[scafo.Application], created bool, err error) {
	if _, err := scafo.ParseApplicationName(name); err != nil {
		return d, false, err
	}
	uid := r.Nonce(uidBytes)
	if mistake.Made(mistake.UIDReused) {
		uid = fmt.Sprintf("%016x", crc32.ChecksumIEEE([]byte(name)))
	}
	d, err = Update(ctx, r, ApplicationKey(name), func(d *Doc[scafo.Application]) error {
		created = false
		if d.Exists {
			if d.Value.Deleting != nil {
				return errDeleting(name)
			}
			return ErrKeep
		}
		created = true
		d.Value = scafo.Application{Name: name, CreatedAt: r.Now(), CreatedBy: by, Replicas: scafo.Replicas{Count: 1}}
		if init != nil {
			init(&d.Value)
		}
		d.Value.Name, d.Value.UID = name, uid
		return nil
	})
	if err != nil {
		return d, false, err
	}
	return d, d.Value.UID == uid, nil
}

// UpdateApplication changes an application's record; not-found when there is
// none, application-deleting when its deletion has begun. A change that returns
// ErrKeep writes nothing.
func (r *Registry) UpdateApplication(ctx context.Context, name string, change func(*scafo.Application) error) (scafo.Application, error) {
	if _, err := scafo.ParseApplicationName(name); err != nil {
		return scafo.Application{}, err
	}
	wrote := false
	d, err := Update(ctx, r, ApplicationKey(name), func(d *Doc[scafo.Application]) error {
		wrote = false
		if !d.Exists {
			return errNoApplication(name)
		}
		if d.Value.Deleting != nil {
			return errDeleting(name)
		}
		uid := d.Value.UID
		d.Value.Labels, d.Value.Selector = cloneMap(d.Value.Labels), cloneMap(d.Value.Selector)
		d.Value.Domains = slices.Clone(d.Value.Domains)
		if err := change(&d.Value); err != nil {
			return err
		}
		d.Value.Name, d.Value.UID = name, uid
		wrote = true
		return nil
	})
	if err != nil || !wrote {
		return d.Value, err
	}
	return d.Value, r.Announce(ctx, ApplicationKey(name))
}
