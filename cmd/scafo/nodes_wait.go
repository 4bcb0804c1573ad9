package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/plan"
	"github.com/scafo/scafo/internal/registry"
)

const (
	// drainWait is how long `nodes drain --wait` waits unless it is told otherwise, and
	// drainLook how often it looks: each look is two reads of the bucket.
	drainWait = 10 * time.Minute
	drainLook = time.Second
	// drainSilent is for how long a node may look silent before the wait gives it up: a
	// clock that differs makes an old heartbeat of a new one.
	drainSilent = 15 * time.Second
)

// awaitDrained waits until a node that drains runs nothing any more, and tells what it
// still runs whenever that changed.
func awaitDrained(ctx context.Context, tell io.Writer, r *registry.Registry, id string, within, stale time.Duration) (nodeView, error) {
	deadline := time.Now().Add(within)
	var silent time.Time // since when it looks so
	said := ""
	for {
		n, err := viewNode(ctx, r, id, stale)
		if err != nil && scafo.CodeOf(err) != scafo.CodeStoreUnavailable {
			return n, err
		}
		if err == nil {
			done, stopped := drained(n)
			if done || stopped != nil {
				return n, stopped
			}
			switch {
			case n.State != plan.StandingSilent:
				silent = time.Time{}
			case silent.IsZero():
				silent = time.Now()
			case time.Since(silent) >= drainSilent:
				return n, scafo.Errorf(scafo.CodeDraining, "node %s is silent, and may be lost with what it ran: scafo nodes remove %s gives it up", id, id)
			}
			if names := n.names(); names != said {
				said = names
				fmt.Fprintf(tell, "scafo: node %s still runs %s\n", id, orNothing(names))
			}
		}
		if !time.Now().Add(drainLook).Before(deadline) {
			return n, scafo.Errorf(scafo.CodeDraining, "node %s was not drained within %s: it still runs %s", id, within, orNothing(n.names()))
		}
		select {
		case <-ctx.Done():
			return n, ctx.Err()
		case <-time.After(drainLook):
		}
	}
}

// drained is whether there is nothing left to wait for; err says why there never will
// be.
func drained(n nodeView) (done bool, err error) {
	switch {
	case n.Removed != nil:
		return false, scafo.Errorf(scafo.CodeReferenceHeld, "node %s was removed from the fleet meanwhile", n.ID)
	case n.Drain == nil:
		return false, scafo.Errorf(scafo.CodeDraining, "the drain of node %s was taken back meanwhile", n.ID)
	}
	return n.State == plan.StandingDrained || n.State == plan.StandingNew, nil
}

func orNothing(names string) string {
	if names == "" {
		return "nothing, and has not said that it drains"
	}
	return names
}
