package celld

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/scafo/scafo"
)

const diagnoseTimeout = 60 * time.Second

// Row is one check of `celld diagnose --json`.
type Row struct {
	Verdict string `json:"verdict"` // ok, fail or skip
	Check   string `json:"check"`
	Detail  string `json:"detail"`
}

// Diagnose runs the runtime's own checks of its environment, bucket and
// listeners. It binds the listeners of s, so those should have free ports: an
// empty Listen takes any. Rows that failed are no error.
func Diagnose(ctx context.Context, command string, s Serve, env []string) ([]Row, error) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	if s.Listen == "" {
		s.Listen = "127.0.0.1:0"
	}
	cmd := exec.CommandContext(ctx, command, append([]string{"diagnose", "--json"}, s.Args()...)...) //nolint:gosec // the operator's celld.command
	cmd.Env = env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = time.Second
	out, errs := &head{most: maxDeployOutput}, &tail{most: maxDeployErrors}
	cmd.Stdout, cmd.Stderr = out, errs
	err := onOneThread(cmd.Run)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == ExitFailed) {
		return nil, scafo.Wrap(err, scafo.CodeCapabilityMissing, "%s diagnose could not be run", command)
	}
	rows, perr := parseRows(out.b)
	if perr != nil {
		return nil, scafo.Wrap(perr, scafo.CodeCapabilityMissing, "%s diagnose: %s", command, Sentence(string(errs.bytes())))
	}
	return rows, nil
}

// parseRows takes an array of rows, or one row a line.
func parseRows(b []byte) ([]Row, error) {
	var rows []Row
	if err := json.Unmarshal(b, &rows); err == nil {
		return rows, nil
	}
	rows = nil
	for line := range splitLines(b) {
		var r Row
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("row %d: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, errors.New("no rows")
	}
	return rows, nil
}
