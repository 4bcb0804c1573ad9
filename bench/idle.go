package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	manyApps       = 20
	nodeMemoryGoal = 80 // MiB
	nodeCPUGoal    = 2  // percent of a core
	manyGoal       = 3
	uploadBytes    = 95 * mib // 100 MB, and below what a node takes by itself
	aboveIdleGoal  = 32       // MiB
	// ticksPerSecond is USER_HZ, which Linux fixed at 100 for what it tells programs.
	ticksPerSecond = 100
)

// memory is a process's proportional share, in bytes, and its highest resident size.
func memory(pid int) (share, peak int64, err error) {
	read := func(file, field string) (int64, error) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return 0, err
		}
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			if rest, ok := strings.CutPrefix(s.Text(), field+":"); ok {
				kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				return kb << 10, err
			}
		}
		return 0, fmt.Errorf("/proc/%d/%s has no %s", pid, file, field)
	}
	share, err = read("smaps_rollup", "Pss")
	if err == nil {
		peak, err = read("status", "VmHWM")
	}
	return share, peak, err
}

// forgetPeak makes a process's highest resident size its size of now.
func forgetPeak(pid int) error {
	const peak = "5" // as proc(5) has it
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(peak), 0)
}

// aboveIdle is how much more memory a process holds at most during f than before it, in
// bytes.
func aboveIdle(pid int, f func() error) (int64, error) {
	if err := forgetPeak(pid); err != nil {
		return 0, err
	}
	_, before, err := memory(pid)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	_, after, err := memory(pid)
	return after - before, err
}

// aboveIdleHere is aboveIdle for this very process, which gives back first what it
// holds and does not need.
func (b *bench) aboveIdleHere(what string, f func() error) error {
	debug.FreeOSMemory()
	above, err := aboveIdle(os.Getpid(), f)
	if err == nil {
		b.bound(what, mibs(above), float64(above)/mib, aboveIdleGoal, "MiB")
	}
	return err
}

// cpu is the time that a process has spent.
func cpu(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, behindName, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(behindName)
	if len(fields) < 13 {
		return 0, errors.New("/proc tells no times")
	}
	user, uerr := strconv.ParseInt(fields[11], 10, 64)
	system, serr := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(uerr, serr)
}

// deployMany deploys hello under several names, one after another.
func (f *fleet) deployMany(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		dir, _, err := f.helloProject(fmt.Sprintf("app%d", i), 1)
		if err != nil {
			return err
		}
		if _, err := f.deploy(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// benchIdle leaves a fleet alone, with one application and with twenty.
func benchIdle(ctx context.Context, b *bench) error {
	s, err := b.countedStore(ctx)
	if err != nil {
		return err
	}
	f, err := b.newFleet()
	if err != nil {
		return errors.Join(err, s.stop())
	}
	s.lead(f)
	if err := f.start(ctx); err != nil {
		return errors.Join(err, s.stop())
	}
	err = func() error {
		had := 0
		for _, apps := range []int{1, manyApps} {
			if err := f.deployMany(ctx, had, apps); err != nil {
				return err
			}
			had = apps
			if err := b.idleRows(ctx, f, s, apps); err != nil {
				return err
			}
		}
		return nil
	}()
	return errors.Join(err, f.stop(), s.stop())
}

// settle is how long what a deploy announces may take to be told.
const settle = 5 * time.Second

func (b *bench) idleRows(ctx context.Context, f *fleet, s *countedStore, apps int) error {
	if err := pause(ctx, settle); err != nil {
		return err
	}
	s.taken()
	pid := f.up.Process.Pid
	before, err := cpu(pid)
	if err != nil {
		return err
	}
	if err := pause(ctx, b.idle); err != nil {
		return err
	}
	after, err := cpu(pid)
	if err != nil {
		return err
	}
	perMinute := func(n int) float64 { return float64(n) * float64(time.Minute) / float64(b.idle) }
	ours, theirs := 0, 0
	for q, n := range s.taken() {
		if q.own {
			ours += n
		} else {
			theirs += n
		}
	}
	what := fmt.Sprintf("with %d idle application(s): ", apps)
	b.number(what+"bucket requests a minute, scafo's own", fmt.Sprintf("%.0f", perMinute(ours)))
	b.number(what+"bucket requests a minute, the runtimes'", fmt.Sprintf("%.0f", perMinute(theirs)))
	percent := 100 * float64(after-before) / float64(b.idle)
	b.bound(what+"CPU of the node", fmt.Sprintf("%.2f %% of a core", percent), percent, nodeCPUGoal, "% of a core")
	share, _, err := memory(pid)
	if err != nil {
		return err
	}
	b.bound(what+"memory of the node", mibs(share), float64(share)/mib, nodeMemoryGoal, "MiB")
	state, err := f.client.State(ctx)
	if err != nil {
		return err
	}
	var all, own []int64
	for _, p := range state.Processes {
		share, _, err := memory(p.PID)
		if err != nil {
			return err
		}
		alone, err := private(p.PID)
		if err != nil {
			return err
		}
		all, own = append(all, share), append(own, alone)
	}
	b.number(what+"memory of one celld-workerd", mibs(median(all)))
	if apps > 1 { // one alone has what several share to itself
		adds := median(own)
		b.bound(what+"private memory of one, its workerd included", mibs(adds), float64(adds)/mib, privateGoal, "MiB")
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// benchMany starts a fleet that has twenty applications, and twenty bare workerds at
// once.
func benchMany(ctx context.Context, b *bench) error {
	f, err := b.startedFleet(ctx)
	if err != nil {
		return err
	}
	if err := f.deployMany(ctx, 0, manyApps); err != nil {
		return errors.Join(err, f.stop())
	}
	if err := f.stop(); err != nil {
		return err
	}
	var whole, bare []time.Duration
	for range max(1, b.rounds/2) {
		t, err := b.bareMany(ctx)
		if err != nil {
			return err
		}
		bare = append(bare, t)
		began := time.Now()
		if err := f.start(ctx); err != nil {
			return err
		}
		if err := f.allAnswer(ctx, manyApps); err != nil {
			return errors.Join(err, f.stop())
		}
		whole = append(whole, time.Since(began))
		if err := f.stop(); err != nil {
			return err
		}
	}
	b.ratio(fmt.Sprintf("`scafo up` until %d applications answer, against as many bare workerds", manyApps),
		ms(median(whole)), ms(median(bare)), median(ratios(whole, bare)), manyGoal)
	return nil
}

func (b *bench) bareMany(ctx context.Context) (time.Duration, error) {
	dir, err := b.bareDir()
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []*bareWorkerd
	var failure error
	began := time.Now()
	for range manyApps {
		wg.Go(func() {
			w, err := b.startBare(ctx, dir)
			mu.Lock()
			defer mu.Unlock()
			failure = errors.Join(failure, err)
			if err == nil {
				all = append(all, w)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	for _, w := range all {
		w.stop()
	}
	return took, failure
}

// allAnswer waits until every application answers through the ingress.
func (f *fleet) allAnswer(ctx context.Context, apps int) error {
	for i := range apps {
		began := time.Now()
		for {
			_, err := f.get(ctx, f.address(fmt.Sprintf("app%d", i)))
			if err == nil {
				break
			}
			if ctx.Err() != nil || time.Since(began) > patience {
				return fmt.Errorf("app%d does not answer: %w", i, err)
			}
			time.Sleep(answerLook)
		}
	}
	return nil
}

// benchUpload sends a large artifact and looks at the node's highest memory.
func benchUpload(ctx context.Context, b *bench) error {
	f, err := b.startedFleet(ctx)
	if err != nil {
		return err
	}
	err = func() error {
		if err := f.deployMany(ctx, 0, 1); err != nil {
			return err
		}
		artifact, err := largeArtifact(uploadBytes)
		if err != nil {
			return err
		}
		above, err := aboveIdle(f.up.Process.Pid, func() error {
			return f.publishArtifact(ctx, "large", bytes.NewReader(artifact), int64(len(artifact)))
		})
		if err != nil {
			return err
		}
		b.bound("memory that a deploy of 100 MB of assets adds to the node", mibs(above), float64(above)/mib, aboveIdleGoal, "MiB")
		return nil
	}()
	return errors.Join(err, f.stop())
}
