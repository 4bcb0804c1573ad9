package celld

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scafo/scafo"
)

const (
	maxDeployOutput = 1 << 20
	maxDeployErrors = 64 << 10
	deployWaitDelay = 5 * time.Second
	// deployTries is how often the command runs that ended without a word on the
	// project; deployPause is waited before the second time, and longer each time.
	deployTries = 3
	deployPause = 100 * time.Millisecond
)

// Deploy runs `celld deploy`: it bundles a project, publishes it under the
// target's prefix and moves the pointer. It never outlives this process.
type Deploy struct {
	Command string
	Project string // a directory, or a configuration file
	Target
	DryRun bool
	Env    []string // the whole environment
	Dir    string   // the working directory; empty: this process's own
	// Confine, when set, calls run, which runs the command from the thread it is
	// called on and waits for it, on a thread that stays until then, such as one that
	// has given up rights.
	Confine func(run func() error) error
	// Retrying, when set, is told why the command runs again.
	Retrying func(error)
}

// DeployResult is what a deploy published, or would publish in a dry run.
type DeployResult struct {
	Worker   string `json:"worker"`
	Version  string `json:"version"`
	Location string `json:"location"`
	DryRun   bool   `json:"dry_run"`
}

// DeployError is the cause behind a deploy's refusal.
type DeployError struct {
	Sentence string // the runtime's own words
	ExitCode int    // -1 when it did not exit by itself
	// Killed is the signal that ended it, sent by somebody else: the kernel when
	// memory ran out, or a person. It says nothing about the project.
	Killed string
	// LostRace: another deploy moved the pointer first, and nothing was published.
	LostRace bool
	// MayHaveCommitted: the answer to the pointer's write was lost, so that only
	// reading the pointer back tells.
	MayHaveCommitted bool
}

// Again is whether the same command may well end otherwise the next time.
// Publishing again is safe: the same content is the same version.
func (e *DeployError) Again() bool { return e.Killed != "" || e.LostRace || e.MayHaveCommitted }

func (e *DeployError) Error() string {
	return fmt.Sprintf("deploy exited %d: %s", e.ExitCode, e.Sentence)
}

var versionRule = regexp.MustCompile(`^[0-9a-f]{16}$`)

// ValidVersion reports whether s has the form of a deployment's version: 16 hex
// digits of a digest over the content.
func ValidVersion(s string) bool { return versionRule.MatchString(s) }

// Args is the command line behind the program's name.
func (d Deploy) Args() []string {
	args := append([]string{"deploy", d.Project}, d.args()...)
	if d.DryRun {
		args = append(args, "--dry-run")
	}
	return append(args, "--json")
}

// Run runs the command, and again when it was killed by somebody else or asks to
// be run again. When ctx ends, the command and all that it started are killed. A
// refusal is a publish-failed whose detail is the runtime's own sentence, with a
// *DeployError behind it.
func (d Deploy) Run(ctx context.Context) (DeployResult, error) {
	for try := 1; ; try++ {
		r, err := d.once(ctx)
		var e *DeployError
		if err == nil || try == deployTries || !errors.As(err, &e) || !e.Again() {
			return r, err
		}
		if d.Retrying != nil {
			d.Retrying(err)
		}
		t := time.NewTimer(time.Duration(try) * deployPause)
		select {
		case <-ctx.Done():
			t.Stop()
			return r, deployFailure(ctx, err, "")
		case <-t.C:
		}
	}
}

func (d Deploy) once(ctx context.Context) (DeployResult, error) {
	out, errs := &head{most: maxDeployOutput}, &tail{most: maxDeployErrors}
	cmd := exec.CommandContext(ctx, d.Command, d.Args()...) //nolint:gosec // the operator's celld.command
	cmd.Env = d.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = deployWaitDelay
	cmd.Dir = d.Dir
	on := d.Confine
	if on == nil {
		on = onOneThread
	}
	if err := on(cmd.Run); err != nil {
		return DeployResult{}, deployFailure(ctx, err, string(errs.bytes()))
	}
	return parseDeploy(out)
}

// onOneThread starts and waits from one thread that stays: the parent-death signal
// follows the thread that forked, not the process.
func onOneThread(run func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- run()
	}()
	return <-done
}

func deployFailure(ctx context.Context, err error, stderr string) error {
	if ctx.Err() != nil {
		return scafo.Wrap(context.Cause(ctx), scafo.CodePublishFailed, "the deploy command was stopped before it was done")
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return scafo.Wrap(err, scafo.CodePublishFailed, "the deploy command could not be run")
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		// Whatever it had printed by then is no reason.
		e := &DeployError{ExitCode: exit.ExitCode(), Killed: unix.SignalName(ws.Signal())}
		e.Sentence = "the deploy command was ended from outside (" + e.Killed + "), which says nothing about the project; a machine that runs out of memory does that. Deploy again"
		return scafo.Wrap(e, scafo.CodePublishFailed, "%s", e.Sentence)
	}
	e := &DeployError{Sentence: Sentence(stderr), ExitCode: exit.ExitCode()}
	if e.Sentence == "" {
		e.Sentence = fmt.Sprintf("the deploy command ended with %s and said nothing", exit.ProcessState)
	}
	said := strings.ToLower(e.Sentence)
	e.MayHaveCommitted = strings.Contains(said, "may have committed")
	e.LostRace = !e.MayHaveCommitted && raceRule.MatchString(said)
	return scafo.Wrap(e, scafo.CodePublishFailed, "%s", e.Sentence)
}

var raceRule = regexp.MustCompile(`\b(re-?run|run (it |the deploy |deploy )?again|try again)\b`)

func parseDeploy(out *head) (DeployResult, error) {
	var r DeployResult
	if out.lost {
		return r, scafo.Errorf(scafo.CodePublishFailed, "the deploy command printed more than %d bytes", out.most)
	}
	err := json.Unmarshal(bytes.TrimSpace(out.b), &r)
	if err == nil && !ValidVersion(r.Version) {
		err = fmt.Errorf("version %q", clip(r.Version, 80))
	}
	if err != nil {
		return DeployResult{}, scafo.Wrap(err, scafo.CodePublishFailed, "the deploy command's answer is not understood")
	}
	return r, nil
}
