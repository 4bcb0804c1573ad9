package server

import (
	"testing"
	"time"
)

// The others of an application that starts everywhere at once are found within its
// first seconds, and a fleet that stands still is looked at once a minute.
func TestWhenPeersAreRead(t *testing.T) {
	var at, pause time.Duration
	var reads []time.Duration
	for pause = peersFirst; at < 10*time.Minute; pause = nextPeers(pause) {
		at += pause
		reads = append(reads, at)
	}
	for i, want := range []time.Duration{2 * time.Second, 6 * time.Second, 14 * time.Second, 30 * time.Second} {
		if reads[i] != want {
			t.Errorf("reading %d after %s, want %s", i+1, reads[i], want)
		}
	}
	if pause != time.Minute || len(reads) > 16 {
		t.Errorf("%d readings in ten minutes, and then each %s", len(reads), pause)
	}
}
