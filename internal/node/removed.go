package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// errRemoved is how a node ends that was removed while it ran.
func errRemoved(id string) error {
	return scafo.Wrap(registry.ErrRemoved, scafo.CodeReferenceHeld, "node %s was removed from the fleet; it has drained and stops: scafo nodes admit lets it come back", id)
}

// leaveRuntimes ends what runs here of an earlier life when refused says that the
// fleet removed this node meanwhile: nobody else would, and it would go on beside its
// successors.
func (n *Node) leaveRuntimes(ctx context.Context, refused error) error {
	if !errors.Is(refused, registry.ErrRemoved) || n.Command == "" {
		return nil
	}
	s, err := n.newSupervisor()
	if err == nil {
		err = s.TakeOver(ctx)
	}
	if err != nil {
		return fmt.Errorf("applications that still run here cannot be ended: %w", err)
	}
	left := len(s.Statuses())
	if left == 0 {
		return nil
	}
	n.log.Warn("this node was removed from the fleet; what still runs here is stopped", "event", "node.removed", "processes", left)
	if err := s.End(n.hurry()); err != nil {
		return fmt.Errorf("applications that still run here cannot be ended: %w", err)
	}
	return nil
}
