package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the time by which a lease is held. It must run through a suspend of
// the machine.
type Clock interface {
	Now() time.Duration // since some fixed moment
}

// bootClock is CLOCK_BOOTTIME: unlike the monotonic clock of the Go runtime it
// goes on while the machine sleeps, as the lease does.
type bootClock struct{}

func (bootClock) Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		// Linux has had this clock since 2.6.39. Without it nothing may be held: a
		// clock at its end makes every lease lapse.
		return never
	}
	return time.Duration(t.Nano())
}
