package paralleltest

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhoIsEarlyGetsTheFirstSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		names := []string{"a", "b", "c", "early 1", "early 2", "early 3"}
		began := make(chan string, len(names))
		for _, name := range names {
			go func() { q.take(strings.HasPrefix(name, "early")); began <- name }()
			synctest.Wait()
		}
		if len(began) != 0 {
			t.Errorf("%q began before all could have come", <-began)
		}
		time.Sleep(gathering)
		for _, want := range []string{"early 1", "early 2", "early 3", "a", "b", "c"} {
			synctest.Wait()
			if len(began) != 1 {
				t.Fatalf("%d began at once instead of %q alone", len(began), want)
			}
			if got := <-began; got != want {
				t.Errorf("%q began, want %q", got, want)
			}
			q.give()
		}
		if q.free != 1 {
			t.Errorf("%d slots are free in the end, want 1", q.free)
		}
	})
}

func TestAsManyAsThereAreSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 3
		q := newQueue(slots)
		began := make(chan struct{}, 10)
		for range 2 * slots {
			go func() { q.take(false); began <- struct{}{} }()
		}
		time.Sleep(gathering)
		synctest.Wait()
		if len(began) != slots {
			t.Fatalf("%d began, want %d", len(began), slots)
		}
		for i := range slots {
			q.give()
			synctest.Wait()
			if len(began) != slots+i+1 {
				t.Fatalf("%d began once %d were over, want %d", len(began), i+1, slots+i+1)
			}
		}
	})
}

func TestPortsAreDisjoint(t *testing.T) {
	var first int
	t.Run("two", func(t *testing.T) {
		first = Ports(t, 5)
		for range 3 {
			if next := Ports(t, MostPorts); next < first+5 && first < next+MostPorts {
				t.Errorf("%d and on, and %d and on", first, next)
			} else if next < lowestPort || next+MostPorts-1 > highestPort {
				t.Errorf("from %d", next)
			}
		}
	})
	// The one that is over has given its own back.
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first-1)))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
