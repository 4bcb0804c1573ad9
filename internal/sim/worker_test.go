package sim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Seeds run in processes of their own, one for each core: within one the runs go one
// after another on one thread, which is what makes them repeatable.

// workerEnv holds a worker's job.
const workerEnv = "SCAFO_SIM_JOB"

// job is seeds to run.
type job struct {
	From     uint64
	Seeds    int
	Failures int    // after how many failures to stop
	Show     bool   // report every seed with its whole trace
	Hash     bool   // say of every seed what its trace comes to
	Mistake  string // what the process is to do wrong, see broken_test.go
}

// verdict is what a worker writes about one seed.
type verdict struct {
	Seed      uint64
	Violation string // empty when all is well
	Report    string // the trace, where there is something to report
	Hash      string // of the trace, where the job asks for it
}

// chunkAtMost bounds a worker's job: a fleet that spins without its time going on never
// ends by itself.
const chunkAtMost = 5 * time.Minute

// chunk is how many seeds a worker is handed at once, so that none idles at the end.
const chunk = 50

// fleets runs a job on all cores, and returns how many seeds ran, and what there is to
// report, by seed as far as they ran.
func fleets(ctx context.Context, j job) (done int, reports []verdict, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	size := min(chunk, max(1, (j.Seeds+workers-1)/workers))
	var mu sync.Mutex // guards next, done, failures, reports and err
	next, failures := 0, 0
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				mu.Lock()
				part := j
				part.From, part.Seeds = j.From+uint64(next), min(size, j.Seeds-next) //nolint:gosec // a count
				next += part.Seeds
				stop := part.Seeds <= 0 || err != nil || failures >= j.Failures
				mu.Unlock()
				if stop {
					return
				}
				bad := hand(ctx, part, func(v verdict) {
					mu.Lock()
					defer mu.Unlock()
					done++
					if v.Violation != "" {
						failures++
					}
					if v.Report != "" || v.Hash != "" {
						reports = append(reports, v)
					}
				})
				if bad != nil {
					mu.Lock()
					if err == nil {
						err = bad
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return done, reports, err
}

// hand has a process run a job.
func hand(ctx context.Context, j job, each func(verdict)) error {
	exe, err := worker()
	if err != nil {
		return err
	}
	body, err := json.Marshal(j)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, chunkAtMost)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestWorker$", "-test.timeout=0", fmt.Sprint("-calls=", *callsFlag)) //nolint:gosec // itself
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }                                             // it says where it is
	cmd.WaitDelay = 10 * time.Second
	verdicts, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer verdicts.Close()
	defer theirs.Close()
	cmd.ExtraFiles = []*os.File{theirs}
	// Nothing interrupts a goroutine but itself: else the order would be chance.
	cmd.Env = append(os.Environ(), workerEnv+"="+string(body), "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1", "TMPDIR="+workerDir, "SCAFO_MISTAKE="+j.Mistake)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := theirs.Close(); err != nil {
		return err
	}
	lines := json.NewDecoder(verdicts)
	n := 0
	for lines.More() {
		var v verdict
		if err = lines.Decode(&v); err != nil {
			break
		}
		n++
		each(v)
	}
	if failed := cmd.Wait(); failed != nil || err != nil {
		return fmt.Errorf("the worker that ran seed %d: %v %v\n%s", j.From+uint64(n), failed, err, said.String()) //nolint:gosec // a count
	}
	return nil
}

// verdictsFD is where a worker writes its verdicts.
const verdictsFD = 3

// TestWorker is a worker's part: it runs in a process that TestFleet starts.
func TestWorker(t *testing.T) {
	body := os.Getenv(workerEnv)
	if body == "" {
		t.Skip("TestFleet starts it")
	}
	var j job
	if err := json.Unmarshal([]byte(body), &j); err != nil {
		t.Fatal(err)
	}
	// Memory is tidied up between runs alone: during one, it would be chance where.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryAtMost)
	out := json.NewEncoder(os.NewFile(verdictsFD, "verdicts"))
	for seed := j.From; seed < j.From+uint64(j.Seeds) && j.Failures > 0; seed++ { //nolint:gosec // a count
		tidy()
		r := simulate(t, seed, usual())
		v := verdict{Seed: seed, Violation: r.violation}
		switch {
		case j.Show:
			v.Report = strings.Join(r.trace.text(0), "\n")
		case r.violation != "":
			v.Report = strings.Join(r.trace.text(lastLines), "\n")
		}
		if j.Hash {
			v.Hash = fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(r.trace.text(0), "\n"))))
		}
		if r.violation != "" {
			j.Failures--
		}
		if err := out.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	// tidyAt is how much memory a worker may hold before a run. A run leaves tens of
	// megabytes.
	tidyAt = 192 << 20
	// memoryAtMost is where Go tidies up in the middle of a run after all.
	memoryAtMost = 1 << 30
)

// tidy frees what earlier runs left.
func tidy() {
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.HeapAlloc > tidyAt {
		runtime.GC()
	}
}
