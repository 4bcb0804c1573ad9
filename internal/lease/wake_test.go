package lease

import (
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
)

type still struct{}

func (still) Now() time.Duration { return time.Hour }

// Who waits for a change steps once it is woken. Two who wait for one write would wake
// each other for as long as that takes, if a step that changes nothing did.
func TestAStepThatChangesNothingWakesNobody(t *testing.T) {
	r := New(registry.New(memory.New(), registry.Options{}), Config{Node: "a", Clock: still{}})
	woken := func(e Event) bool {
		r.mu.Lock()
		moved := r.moved
		r.mu.Unlock()
		r.step(e)
		select {
		case <-moved:
			return true
		default:
			return false
		}
	}
	if !woken(Event{Resign: true}) {
		t.Error("nobody hears that it resigned")
	}
	if woken(Event{Resign: true}) || woken(Event{}) {
		t.Error("who waits is woken for nothing")
	}
}
