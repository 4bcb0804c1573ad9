//go:build system

package lease

import "testing"

// The same model, complete, with an answer that is lost, or a process that is
// executed anew: some millions of worlds each.
func TestTwoContendersAndALossExhaustively(t *testing.T) { (&explorer{losses: 1}).exhaust(t) }

func TestTwoContendersAndARestartExhaustively(t *testing.T) { (&explorer{restarts: 1}).exhaust(t) }
