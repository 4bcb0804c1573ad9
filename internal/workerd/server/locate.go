package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// besideProgram is where npm puts workerd, seen from the directory of this
// program in a checkout or an installed tree.
const besideProgram = "../node_modules/@cloudflare/workerd-linux-64/bin/workerd"

// Locate finds workerd: what CELLD_WORKERD_BIN names, else beside this program,
// else in node_modules next to its directory, else on PATH.
func Locate(e Env, executable string) (string, error) {
	if e.WorkerdBin != "" {
		if !runnable(e.WorkerdBin) {
			return "", fmt.Errorf("CELLD_WORKERD_BIN names %s, which is no program", e.WorkerdBin)
		}
		return filepath.Abs(e.WorkerdBin)
	}
	if executable != "" {
		dir := filepath.Dir(executable)
		for _, candidate := range []string{filepath.Join(dir, "workerd"), filepath.Join(dir, besideProgram)} {
			if runnable(candidate) {
				return candidate, nil
			}
		}
	}
	if p, err := exec.LookPath("workerd"); err == nil {
		return filepath.Abs(p)
	}
	return "", errors.New("workerd was not found: not beside this program, not in ../node_modules, not on PATH; CELLD_WORKERD_BIN can name it")
}

func runnable(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().IsRegular() && i.Mode()&0o111 != 0
}

const workerdVersionTimeout = 10 * time.Second

// WorkerdVersion is the version of that workerd, as npm counts it:
// 1.20261117.1. The program itself knows only the date; the rest comes from the
// package around it, when that is of the same date.
func WorkerdVersion(ctx context.Context, workerd string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, workerdVersionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, workerd, "--version")
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", workerd, err)
	}
	date, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "workerd ")
	if _, perr := time.Parse(time.DateOnly, date); !ok || perr != nil {
		return "", fmt.Errorf("%s --version printed %.80q, which is no workerd's version", workerd, out)
	}
	version := "1." + strings.ReplaceAll(date, "-", "")
	if packaged := packageVersion(workerd); strings.HasPrefix(packaged, version+".") {
		return packaged, nil
	}
	return version, nil
}

func packageVersion(workerd string) string {
	if p, err := filepath.EvalSymlinks(workerd); err == nil {
		workerd = p
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(workerd), "..", "package.json"))
	if err != nil {
		return ""
	}
	var doc struct{ Name, Version string }
	if json.Unmarshal(b, &doc) != nil || !strings.HasPrefix(doc.Name, "@cloudflare/workerd-") {
		return ""
	}
	return doc.Version
}
