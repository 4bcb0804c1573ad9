package celld

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/scafo/scafo"
)

// The products that have this command line.
const (
	ProductCelld   = "celld"
	ProductWorkerd = "celld-workerd"
)

const (
	versionTimeout = 10 * time.Second
	maxVersionText = 4096
)

// Release is what a runtime's --version line says.
type Release struct {
	Product string
	Version string
	Workerd string // of celld-workerd: the workerd that it drives
	Debug   bool
}

var releaseRule = regexp.MustCompile(`^(celld|celld-workerd) v?(\S+?)(?:[ ,]+\(?workerd[ /]v?([^\s)]+)\)?)?( \(debug\))?$`)

// ParseVersion reads a --version line: `celld 0.6.2`, with ` (debug)` behind it
// for a debug build, or `celld-workerd 0.1.0 (workerd 1.20261117.1)`.
func ParseVersion(line string) (Release, error) {
	m := releaseRule.FindStringSubmatch(strings.TrimSpace(line))
	if m == nil {
		return Release{}, fmt.Errorf("%q is no celld version", clip(line, 120))
	}
	return Release{Product: m[1], Version: m[2], Workerd: m[3], Debug: m[4] != ""}, nil
}

// Version asks the program which release it is and returns its line. extra, such
// as the operator's celld.env, is NAME=VALUE pairs for what the program needs to
// find its own parts; beyond it, the program gets PassedVariables alone.
func Version(ctx context.Context, command string, extra ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command, "--version") //nolint:gosec // the operator's celld.command
	cmd.Env = append(passed(os.LookupEnv), extra...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = time.Second
	out, errs := &head{most: maxVersionText}, &head{most: maxVersionText}
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Run(); err != nil {
		return "", scafo.Wrap(fmt.Errorf("%w: %s", err, bytes.TrimSpace(errs.b)), scafo.CodeCapabilityMissing,
			"%s --version failed", command)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out.b)), "\n")
	line = strings.TrimSpace(line)
	if _, err := ParseVersion(line); err != nil {
		return "", scafo.Wrap(err, scafo.CodeCapabilityMissing, "%s is no program with celld's command line", command)
	}
	return line, nil
}

// pair is one step of a rolling upgrade of celld.
type pair struct{ from, to string }

// rollingPairs are the steps during which two versions of celld may serve one
// application together. The value is the durability that the step needs; empty
// is any. What is not here may not.
var rollingPairs = map[pair]string{
	{"0.2.1", "0.3.0"}: "",
	{"0.4.0", "0.4.1"}: "",
	{"0.5.0", "0.5.1"}: "",
	{"0.5.1", "0.6.0"}: DurabilityBucket,
	{"0.6.0", "0.6.1"}: "",
	{"0.6.1", "0.6.2"}: "",
	{"0.6.2", "0.6.1"}: "",
}

// workerdPairs are two versions of workerd whose clusters were tested together.
var workerdPairs = map[pair]bool{}

// MayServeTogether reports whether a fleet may roll from the runtime a to the
// runtime b, with both serving one application meanwhile. Both are --version
// lines. No pair crosses products, since their objects are laid out differently.
func MayServeTogether(a, b, durability string) bool {
	from, err := ParseVersion(a)
	if err != nil {
		return false
	}
	to, err := ParseVersion(b)
	if err != nil || from.Product != to.Product {
		return false
	}
	if from.Product == ProductWorkerd {
		return from.Workerd != "" && (from.Workerd == to.Workerd || workerdPairs[pair{from.Workerd, to.Workerd}])
	}
	if from.Version == to.Version {
		return true
	}
	needs, ok := rollingPairs[pair{from.Version, to.Version}]
	return ok && (needs == "" || needs == durability)
}

// RollingPairs lists the versions of celld to which a fleet on v may roll, under
// CELLD_DURABILITY=bucket. v is a --version line or the number alone.
func RollingPairs(v string) []string {
	if r, err := ParseVersion(v); err == nil {
		if r.Product != ProductCelld {
			return nil
		}
		v = r.Version
	}
	var to []string
	for p := range rollingPairs {
		if p.from == v {
			to = append(to, p.to)
		}
	}
	slices.Sort(to)
	return to
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
