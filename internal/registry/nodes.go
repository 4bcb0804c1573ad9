package registry

import (
	"context"
	"maps"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
)

// Node is a node's record, or not-found.
func (r *Registry) Node(ctx context.Context, id string) (scafo.Node, error) {
	d, err := Load[scafo.Node](ctx, r, NodeKey(id))
	if err == nil && (!d.Exists || d.Value.ID != id) {
		err = scafo.Errorf(scafo.CodeNotFound, "no such node")
	}
	return d.Value, err
}

// RegisterNode claims the node's id for its key and writes its record. What the
// fleet decided about the node stays: its drain, and that it was removed, in
// which case it is refused.
func (r *Registry) RegisterNode(ctx context.Context, n scafo.Node) (scafo.Node, error) {
	if _, err := scafo.ParseID(kindNode, n.ID); err != nil {
		return n, err
	}
	if err := r.claimID(ctx, n.ID, kindNode, n.PublicKey); err != nil {
		return n, err
	}
	wrote := false
	d, err := Update(ctx, r, NodeKey(n.ID), func(d *Doc[scafo.Node]) error {
		wrote = false
		next := n
		next.Header, next.Removed, next.Drain = d.Value.Header, nil, nil
		if next.RegisteredAt.IsZero() {
			next.RegisteredAt = r.Now()
		}
		if d.Exists {
			was := d.Value
			if err := removed(was); err != nil {
				return err
			}
			next.RegisteredAt, next.Drain = was.RegisteredAt, was.Drain
			if was.Address == n.Address && was.Version == n.Version && was.PublicKey == n.PublicKey && maps.Equal(was.Labels, n.Labels) {
				return ErrKeep
			}
		}
		wrote = true
		d.Value = next
		return nil
	})
	if err != nil || !wrote {
		return d.Value, err
	}
	return d.Value, r.Announce(ctx, NodeKey(n.ID))
}

// WriteHeartbeat writes what the node says of itself; only the node itself does.
// It is one request when nobody else wrote it. A change is announced, a renewal is
// not. What an earlier call could not announce follows on the way.
func (r *Registry) WriteHeartbeat(ctx context.Context, h scafo.Heartbeat, announce bool) error {
	ctx = meter.With(ctx, "heartbeat")
	if _, err := scafo.ParseID(kindNode, h.Node); err != nil {
		return err
	}
	key := HeartbeatKey(h.Node)
	r.mu.Lock()
	var base *Doc[scafo.Heartbeat]
	if r.beat.Key == key && r.beat.ETag != "" {
		b := r.beat
		base = &b
	}
	r.mu.Unlock()
	d, err := updateFrom(ctx, r, base, key, func(d *Doc[scafo.Heartbeat]) error {
		d.Value = h
		return nil
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.beat = d
	r.mu.Unlock()
	if announce {
		return r.Announce(ctx, key)
	}
	r.announceLeft(ctx)
	return nil
}
