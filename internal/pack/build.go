package pack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// buildWait is how long a build that was told to end may take.
const buildWait = 5 * time.Second

// runBuild runs build.command as Wrangler does: by the shell, in the directory that
// it names, before anything is read. Its output goes to out.
func (c *config) runBuild(ctx context.Context, out io.Writer, progress func(string)) error {
	at := below(c.build, "command")
	if at == nil {
		return nil
	}
	command, err := at.Text("build.command")
	if err != nil || command == "" {
		return err
	}
	dir := c.base
	if cwd := below(c.build, "cwd"); cwd != nil {
		rel, err := cwd.Text("build.cwd")
		if err != nil {
			return err
		}
		if dir = filepath.FromSlash(rel); !filepath.IsAbs(dir) {
			dir = filepath.Join(c.base, dir)
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return cwd.Errorf("build.cwd %q is no directory", rel)
		}
	}
	progress("building: " + command)
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), "WRANGLER_COMMAND=deploy")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = buildWait
	err = cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return at.Errorf("the build %q ended with %s; --no-build leaves it out", command, exit.ProcessState)
	}
	if err != nil {
		return fmt.Errorf("the build: %w", err)
	}
	return nil
}
