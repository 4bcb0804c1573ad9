package registry

import (
	"context"
	"errors"

	"github.com/scafo/scafo"
)

// ErrRemoved is in the chain of what a node that was removed from the fleet is
// refused with.
var ErrRemoved = errors.New("it was removed from the fleet")

// Nodes are the records of all nodes, the removed ones too, in the order of ids.
func (r *Registry) Nodes(ctx context.Context) ([]scafo.Node, error) {
	docs, err := loadAll[scafo.Node](ctx, r, NodePrefix)
	out := make([]scafo.Node, 0, len(docs))
	for _, d := range docs {
		out = append(out, d.Value)
	}
	return out, err
}

// Heartbeats are the last heartbeats of all nodes, by node.
func (r *Registry) Heartbeats(ctx context.Context) (map[string]scafo.Heartbeat, error) {
	docs, err := loadAll[scafo.Heartbeat](ctx, r, HeartbeatPrefix)
	out := make(map[string]scafo.Heartbeat, len(docs))
	for _, d := range docs {
		out[d.Value.Node] = d.Value
	}
	return out, err
}

// Heartbeat is a node's last heartbeat; known is false where it never wrote one.
func (r *Registry) Heartbeat(ctx context.Context, id string) (h scafo.Heartbeat, known bool, err error) {
	d, err := Load[scafo.Heartbeat](ctx, r, HeartbeatKey(id))
	return d.Value, d.Exists && err == nil, err
}

// The setters of a node change what the fleet decided about it, by one
// compare-and-swap. An unknown node is not-found. What already is as it shall be is
// not written again, but announced: whoever changed it may have died before that.
// changed says whether anything was written, also beside an error: then the change
// could not be announced.

// DrainNode tells a node to give its applications up and takes it out of what is
// placed; the stamp of an earlier drain stays. One that was removed is
// reference-held.
func (r *Registry) DrainNode(ctx context.Context, id, by string) (n scafo.Node, changed bool, err error) {
	return r.setNode(ctx, id, func(n *scafo.Node) (bool, error) {
		if n.Drain != nil || n.Removed != nil {
			return false, removed(*n)
		}
		n.Drain = &scafo.Stamp{At: r.Now(), By: by}
		return true, nil
	})
}

// UndrainNode takes a drain back. A node that was removed is reference-held.
func (r *Registry) UndrainNode(ctx context.Context, id string) (n scafo.Node, changed bool, err error) {
	return r.setNode(ctx, id, func(n *scafo.Node) (bool, error) {
		if n.Drain == nil || n.Removed != nil {
			return false, removed(*n)
		}
		n.Drain = nil
		return true, nil
	})
}

// RemoveNode takes a node out of the fleet: its tokens are refused within the bound
// of revocation, nothing runs there, and it stays out until it is admitted. Its
// record stays, with the stamp of an earlier removal if there is one. It is written
// anew all the same: an admission that was given up, and is still under way, must not
// come after the answer.
func (r *Registry) RemoveNode(ctx context.Context, id, by string) (n scafo.Node, changed bool, err error) {
	already := false
	n, changed, err = r.setNode(ctx, id, func(n *scafo.Node) (bool, error) {
		if already = n.Removed != nil; already {
			return true, nil
		}
		n.Removed = &scafo.Stamp{At: r.Now(), By: by}
		return true, nil
	})
	return n, changed && !already, err
}

// AdmitNode lets a node that was removed come back with the key that it had. A drain
// from before its removal goes as well: it shall take its share.
func (r *Registry) AdmitNode(ctx context.Context, id string) (n scafo.Node, changed bool, err error) {
	return r.setNode(ctx, id, func(n *scafo.Node) (bool, error) {
		if n.Removed == nil {
			return false, nil
		}
		n.Removed, n.Drain = nil, nil
		return true, nil
	})
}

// setNode changes a node's record where change has something to do, and announces
// it.
func (r *Registry) setNode(ctx context.Context, id string, change func(*scafo.Node) (bool, error)) (n scafo.Node, changed bool, err error) {
	if _, err := scafo.ParseID(kindNode, id); err != nil {
		return n, false, err
	}
	read := ""
	d, err := Update(ctx, r, NodeKey(id), func(d *Doc[scafo.Node]) error {
		if !d.Exists || d.Value.ID != id {
			return scafo.Errorf(scafo.CodeNotFound, "there is no node %s", id)
		}
		read = d.Value.Write
		var err error
		if changed, err = change(&d.Value); err == nil && !changed {
			err = ErrKeep
		}
		return err
	})
	if err != nil {
		return d.Value, false, err
	}
	return d.Value, changed && d.Value.Write != read, r.Announce(ctx, NodeKey(id))
}

// removed refuses a node that was removed; nil for others.
func removed(n scafo.Node) error {
	if n.Removed == nil {
		return nil
	}
	return scafo.Wrap(ErrRemoved, scafo.CodeReferenceHeld, "node %s was removed from the fleet by %s: scafo nodes admit lets it come back", n.ID, n.Removed.By)
}
