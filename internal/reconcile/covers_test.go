package reconcile

import "testing"

// signals is a lease of which nothing but its signal matters.
type signals struct {
	Lease
	changed chan struct{}
}

func (s signals) Changed() <-chan struct{} { return s.changed }

// What came before a pass is covered by it, and begins no second one.
func TestOnePassCoversAllSignals(t *testing.T) {
	lease, processes := make(chan struct{}, 1), make(chan struct{}, 1)
	l := &Loop{c: Config{Lease: signals{changed: lease}}, wake: make(chan struct{}, 1)}
	for _, c := range []chan struct{}{l.wake, processes, lease} {
		signal(c)
	}
	l.covers(processes)
	if len(l.wake)+len(processes)+len(lease) != 0 {
		t.Errorf("left over: %d, %d, %d", len(l.wake), len(processes), len(lease))
	}
	l.covers(nil) // a node without a runner; nothing has come
}
