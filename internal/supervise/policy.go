package supervise

import (
	"strconv"
	"time"

	"github.com/scafo/scafo/internal/celld"
)

// Policy has every limit and delay of supervision.
type Policy struct {
	// BackoffMin is the wait after a first crash; it doubles up to BackoffMax, and
	// begins anew once a process stayed up for Stable.
	BackoffMin, BackoffMax, Stable time.Duration
	// FenceWait is the wait after a process lost its lease: one lease at least.
	FenceWait time.Duration

	// A starting process is probed after StartProbeMin, then after a tenth of the
	// time that it took so far, up to StartProbeMax: what waiting adds to a start
	// is in proportion to it.
	StartProbeMin, StartProbeMax, StartProbeTimeout time.Duration
	// StartSilence is how long a starting process may give no answer at all.
	StartSilence time.Duration

	// A ready process is probed each ProbeEvery, and after a missed answer each
	// ProbeRetry. OutAfter missed answers take it out, KillAfter end it.
	ProbeEvery, ProbeRetry, ProbeTimeout time.Duration
	OutAfter, KillAfter                  int
	// StateEvery is how often a ready process is asked what it serves.
	StateEvery time.Duration

	// StopBound is how long a process may drain before it is killed; KillAgain is
	// how often the kill is repeated while it does not go.
	StopBound, KillAgain time.Duration

	// A reload that could not be done is tried again after ReloadMin, doubling up
	// to ReloadMax; one that was refused after ReloadRefused.
	ReloadMin, ReloadMax, ReloadRefused time.Duration
}

// stopSlack is what a runtime gets beyond its own bound for draining.
const stopSlack = 5 * time.Second

// DefaultPolicy is the policy of the contract, with the times that the
// operator's celld.env gives the runtime.
func DefaultPolicy(env map[string]string) Policy {
	return Policy{
		BackoffMin: time.Second, BackoffMax: time.Minute, Stable: time.Minute,
		FenceWait:     max(celld.LeaseTTL, envMS(env, "CELLD_TTL_MS", celld.LeaseTTL)),
		StartProbeMin: 5 * time.Millisecond, StartProbeMax: time.Second, StartProbeTimeout: time.Second,
		StartSilence: 10 * time.Minute,
		ProbeEvery:   2 * time.Second, ProbeRetry: 500 * time.Millisecond, ProbeTimeout: celld.HealthTimeout,
		OutAfter: 2, KillAfter: 5,
		StateEvery: 30 * time.Second,
		StopBound:  envMS(env, "CELLD_SHUTDOWN_TOTAL_MS", celld.DrainBound) + stopSlack,
		KillAgain:  time.Second,
		ReloadMin:  100 * time.Millisecond, ReloadMax: 10 * time.Second, ReloadRefused: time.Minute,
	}
}

func envMS(env map[string]string, name string, otherwise time.Duration) time.Duration {
	ms, err := strconv.Atoi(env[name])
	if err != nil || ms <= 0 {
		return otherwise
	}
	return time.Duration(ms) * time.Millisecond
}

// startProbe is the wait before the next probe of a process that began to start
// that long ago.
func (p Policy) startProbe(elapsed time.Duration) time.Duration {
	return min(max(elapsed/10, p.StartProbeMin), p.StartProbeMax)
}

// backoff is the wait after that many crashes in a row, the last one included.
func (p Policy) backoff(crashes int) time.Duration {
	d := p.BackoffMin
	for range crashes - 1 {
		if d >= p.BackoffMax {
			break
		}
		d *= 2
	}
	return min(d, p.BackoffMax)
}

// restartAfter is how long to wait after a process that was not asked to stop
// ended so, and whether that counts as a crash.
func (p Policy) restartAfter(x exit, crashes int) time.Duration {
	if x.fenced() {
		return p.FenceWait
	}
	return p.backoff(crashes)
}
