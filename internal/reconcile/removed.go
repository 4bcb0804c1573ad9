package reconcile

import "github.com/scafo/scafo"

// Removed is closed when this node hears that it was removed from the fleet. Whoever
// runs the loop then drains and ends: nothing of this node counts any more.
func (l *Loop) Removed() <-chan struct{} { return l.out }

// noteRemoved notes whether this node's record says that it was removed. The caller
// holds mu.
func (l *Loop) noteRemoved(self scafo.Node) {
	if self.Removed == nil {
		return
	}
	select {
	case <-l.out:
	default:
		l.log.Error("this node was removed from the fleet", "event", "node.removed", "by", self.Removed.By, "at", self.Removed.At)
		close(l.out)
	}
}
