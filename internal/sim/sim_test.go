package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seedFlag  = flag.Int64("seed", -1, "run this seed alone")
	seedsFlag = flag.Int("seeds", plainSeeds, "how many seeds to run")
	fromFlag  = flag.Uint64("from", 0, "the first of them")
	twiceFlag = flag.Int("twice", 0, "how many seeds to run twice, to see that they do the same")
	exactFlag = flag.Bool("exact", false, "run the seeds of the plain suite in a worker that repeats itself too")
	showFlag  = flag.Bool("show", false, "print the whole trace of the seed, also when all is well")
	callsFlag = flag.Bool("calls", false, "have the trace name each call of the store as it is sent")
)

// plainSeeds is how many seeds run in the plain suite.
const plainSeeds = 30

// result is what came of a run.
type result struct {
	violation string
	trace     *trace
	took      time.Duration // in virtual time
}

// simulate runs a seed.
func simulate(t *testing.T, seed uint64, o options) (r result) {
	t.Helper()
	dir, err := os.MkdirTemp("", "scafo-sim-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, dir, o.nodes)
		w.run(o)
		r = result{violation: w.violated(), trace: w.trace, took: time.Since(w.begin)}
	})
	return r
}

// lastLines is how much of a trace a failure prints without -show.
const lastLines = 120

func (v verdict) String() string {
	what := v.Violation
	if what == "" {
		what = "all is well"
	}
	return fmt.Sprintf("seed %d: %s\n%s\nrun it again: go test ./internal/sim -run TestFleet -seed %d -show -v", v.Seed, what, v.Report, v.Seed)
}

// failuresAtMost is how many seeds that fail a run reports before it gives up.
const failuresAtMost = 3

// TestFleet runs fleets in which everything goes wrong that the simulation knows, and
// holds them to their invariants.
func TestFleet(t *testing.T) {
	from, n := *fromFlag, *seedsFlag
	if *seedFlag >= 0 {
		from, n = uint64(*seedFlag), 1 //nolint:gosec // it is not negative
	}
	begun := time.Now()
	done, failures, err := fleets(t.Context(), job{From: from, Seeds: n, Show: *showFlag, Failures: failuresAtMost})
	for _, f := range failures {
		if f.Violation == "" {
			t.Log(f)
		} else {
			t.Error(f)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d seeds in %s", done, time.Since(begun).Round(time.Second))
}

// TestTheSameSeedIsTheSameRun runs seeds twice: every line of their traces is the same.
func TestTheSameSeedIsTheSameRun(t *testing.T) {
	if *twiceFlag == 0 {
		t.Skip("make sim runs it: it builds a program of its own")
	}
	first, second := hashes(t), hashes(t)
	for seed := *fromFlag; seed < *fromFlag+uint64(*twiceFlag); seed++ { //nolint:gosec // a count
		if first[seed] != second[seed] || first[seed] == "" {
			t.Errorf("seed %d: two runs differ%s", seed, parting(t, seed))
		}
	}
}

// hashes are those of the traces of the seeds that are run twice.
func hashes(t *testing.T) map[uint64]string {
	t.Helper()
	_, verdicts, err := fleets(t.Context(), job{From: *fromFlag, Seeds: *twiceFlag, Hash: true, Failures: *twiceFlag})
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint64]string{}
	for _, v := range verdicts {
		out[v.Seed] = v.Hash
	}
	return out
}

// replays is how often a seed is run to show where its runs part.
const replays = 8

// parting is where two runs of a seed part, if they do so again.
func parting(t *testing.T, seed uint64) string {
	t.Helper()
	first := digests(t, seed)
	for range replays {
		if other := digests(t, seed); !slices.Equal(first, other) {
			return ", here:\n" + difference(first, other)
		}
	}
	return ", and many more do not"
}

// digests is the trace of a seed that a worker ran.
func digests(t *testing.T, seed uint64) []string {
	t.Helper()
	_, got, err := fleets(t.Context(), job{From: seed, Seeds: 1, Show: true, Failures: 1})
	if err == nil && len(got) != 1 {
		err = errors.New("the worker says nothing")
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(got[0].Report, "\n")
}

// difference is where two traces part.
func difference(x, y []string) string {
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d of %d and %d, after\n%s\n%s\n%s", i, len(x), len(y), strings.Join(x[max(0, i-6):i], "\n"), x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines and %d", len(x), len(y))
}
