package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

const (
	// migrateTimeout bounds the migrations of an adoption: whoever asked for it waits
	// two minutes.
	migrateTimeout = 90 * time.Second
	// migrateAgain is how long a database that cannot be reached is left alone. It may
	// belong to a process that is gone until that one's lease has run out.
	migrateAgain = time.Second
	// migrateLeave is how long a workerd may take to hand its databases over once a
	// migration failed in it.
	migrateLeave = 10 * time.Second
)

// migrate has the databases of a workerd that is ready migrated. Where that fails the
// workerd leaves in order, so that those of before have the databases at once.
func (s *Server) migrate(a adoption, p Process, slot int) error {
	if len(a.deployment.Migrations) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, migrateTimeout)
	defer cancel()
	err := s.rt.Migrate(ctx, a.deployment, p)
	if err == nil {
		return nil
	}
	_ = p.Drain() // it may be gone already
	t := time.NewTimer(migrateLeave)
	defer t.Stop()
	select {
	case <-p.Done():
	case <-t.C:
		_ = p.Kill()
		<-p.Done()
	}
	s.rt.Reaped(context.WithoutCancel(ctx), p, p.Exit().Code == 0)
	s.freeSlot(slot)
	return err
}

// Migrate applies the migrations unless the store says that they were.
func (w *workerdRuntime) Migrate(ctx context.Context, d *layout.Deployment, p Process) error {
	i, ok := p.(*instance.Instance)
	if !ok || len(d.Migrations) == 0 {
		return nil
	}
	key := d.MigratedKey()
	w.mu.Lock()
	known := w.migrated == key
	w.mu.Unlock()
	if known {
		return nil
	}
	_, err := w.store.Get(ctx, key)
	if err != nil && !errors.Is(err, bucket.ErrNotFound) {
		return fmt.Errorf("%w: whether the migrations were applied cannot be read: %w", instance.ErrDatabaseAway, err)
	}
	if err != nil {
		if err := w.applyMigrations(ctx, i, d); err != nil {
			return err
		}
		// Without it the next start asks the databases once more.
		if _, err := w.store.Put(ctx, key, []byte("{}")); err != nil {
			w.log.Warn("that the migrations were applied could not be noted", "err", err)
		}
	}
	w.mu.Lock()
	w.migrated = key
	w.mu.Unlock()
	return nil
}

// applyMigrations tries until the databases answer.
func (w *workerdRuntime) applyMigrations(ctx context.Context, i *instance.Instance, d *layout.Deployment) error {
	for {
		applied, err := i.Migrate(ctx)
		if len(applied) > 0 {
			w.log.Info("applied migrations", "version", d.Version, "migrations", strings.Join(applied, ", "))
		}
		if !errors.Is(err, instance.ErrDatabaseAway) {
			return err
		}
		w.log.Warn("the migrations wait for a database", "version", d.Version, "err", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("the migrations were not done within %s: %w", migrateTimeout, err)
		case <-i.Done():
			return fmt.Errorf("workerd ended while it applied migrations (%s): %w", i.Exit(), err)
		case <-time.After(migrateAgain):
		}
	}
}
