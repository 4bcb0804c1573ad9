// Command bench measures scafo as ratios: each number stands beside a baseline that
// was measured in the same run, on the same machine, in turns with it.
//
//	go run ./bench                      everything, a table at the end
//	go run ./bench -run deploy,memory   some parts only
//	go run ./bench -for 2s -rounds 3    a quick look
//
// It needs the programs of `make build` and the runtime of `make setup`, listens on
// loopback alone, keeps everything in a directory of its own, and leaves nothing
// behind. The exit code is 1 when a goal was missed or a part failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// part is one subject of the benchmark.
type part struct {
	name string
	what string
	run  func(ctx context.Context, b *bench) error
}

var parts = []part{
	{"token", "verifying a token, against a bare Ed25519 verify", benchToken},
	{"workload", "verifying a workload token, against a bare check of its signature", benchWorkload},
	{"api", "GET /v1/applications/:name, against a handler that verifies one signature", benchAPI},
	{"poll", "a poll of the routes that changed nothing, against a bare 304", benchPoll},
	{"routes", "the routing document of 10,000 applications, against encoding/json", benchRoutes},
	{"intake", "an artifact of 100 MB taken in, against copying and hashing it, and unpacked, against tar -x", benchIntake},
	{"pack", "packing a folder, against tar", benchPack},
	{"deploy", "hello, from the start of `scafo deploy` to the first answer, against a bare workerd", benchDeploy},
	{"ingress", "a request through scafo-caddy, against the runtime and against plain Caddy", benchIngress},
	{"idle", "bucket requests, memory and CPU of an idle node, with 1 and with 20 applications", benchIdle},
	{"many", "`scafo up` with twenty applications, against twenty bare workerds", benchMany},
	{"plan", "placing 10,000 applications on 100 nodes, against bare rendezvous scoring", benchPlan},
	{"pass", "a pass over 10,000 applications when one changed, against planning alone", benchPass},
	{"follower", "a deploy through a follower of three nodes, against one node", benchFollower},
	{"lost", "a machine is killed: takeover against the lease's TTL, applications elsewhere against the bound", benchLost},
	{"upload", "the memory that a 100 MB artifact takes", benchUpload},
}

// bench is one run.
type bench struct {
	bin     string        // where the programs lie
	workerd string        // the bare runtime
	dir     string        // everything that is written lies here
	root    string        // of the repository
	load    time.Duration // how long each load lasts
	idle    time.Duration // how long each idle window lasts
	rounds  int
	verbose bool

	part  string
	rows  []row
	crews int // that were made
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{}
	only := flag.String("run", "", "comma-separated parts to run; all when empty")
	list := flag.Bool("list", false, "list the parts")
	asJSON := flag.Bool("json", false, "print the table as JSON")
	asMarkdown := flag.Bool("markdown", false, "print the table as Markdown")
	total := flag.Duration("timeout", 30*time.Minute, "bound of the whole run")
	flag.DurationVar(&b.load, "for", 3*time.Second, "how long each load lasts")
	flag.DurationVar(&b.idle, "idle", time.Minute, "how long an idle window lasts; counts are scaled to a minute")
	flag.IntVar(&b.rounds, "rounds", 7, "rounds of what is measured once a round; medians are printed")
	flag.StringVar(&b.bin, "bin", "bin", "directory of the programs")
	flag.BoolVar(&b.verbose, "v", false, "show each round")
	flag.Parse()
	if *list {
		for _, p := range parts {
			fmt.Printf("%-8s %s\n", p.name, p.what)
		}
		return nil
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if b.rounds < 1 || b.load <= 0 || b.idle <= 0 {
		return errors.New("-rounds, -for and -idle are positive")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *total)
	defer cancel()
	if err := b.prepare(); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	var failed []error
	for _, p := range chosen {
		b.part = p.name
		fmt.Fprintf(os.Stderr, "%-8s %s\n", p.name, p.what)
		if err := p.run(ctx, b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.name, err))
			fmt.Fprintf(os.Stderr, "%-8s failed: %v\n", p.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	switch {
	case *asJSON:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		err = e.Encode(map[string]any{"conditions": conditions(b), "rows": b.rows})
	case *asMarkdown:
		err = markdown(os.Stdout, b)
	default:
		err = table(os.Stdout, b)
	}
	for _, r := range b.rows {
		if r.missed() {
			failed = append(failed, fmt.Errorf("%s: %s: %s misses its goal %s", r.Part, r.What, r.outcome(), r.Goal))
		}
	}
	return errors.Join(append(failed, err)...)
}

func choose(only string) ([]part, error) {
	if only == "" {
		return parts, nil
	}
	var out []part
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q; -list names them", name)
		}
		out = append(out, parts[i])
	}
	return out, nil
}

// prepare finds the programs and makes the working directory.
func (b *bench) prepare() error {
	var err error
	if b.root, err = moduleRoot(); err != nil {
		return err
	}
	if !filepath.IsAbs(b.bin) {
		b.bin = filepath.Join(b.root, b.bin)
	}
	for _, name := range []string{"scafo", "scafo-bucket", "scafo-caddy", "celld-workerd"} {
		if _, err := os.Stat(filepath.Join(b.bin, name)); err != nil {
			return fmt.Errorf("%s is missing: run `make build`", filepath.Join(b.bin, name))
		}
	}
	b.workerd = os.Getenv("SCAFO_WORKERD")
	if b.workerd == "" {
		b.workerd = filepath.Join(b.root, "node_modules/@cloudflare/workerd-linux-64/bin/workerd")
	}
	if _, err := os.Stat(b.workerd); err != nil {
		return fmt.Errorf("%s is missing: run `make setup`", b.workerd)
	}
	b.dir, err = os.MkdirTemp("", "scafo-bench-")
	return err
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("there is no go.mod here or above: run it in the repository")
		}
		dir = parent
	}
}

// sub is a fresh directory of the run.
func (b *bench) sub(name string) (string, error) {
	return os.MkdirTemp(b.dir, name+"-")
}

func (b *bench) say(format string, args ...any) {
	if b.verbose {
		fmt.Fprintf(os.Stderr, "         "+format+"\n", args...)
	}
}

// conditions is under what the numbers were measured.
func conditions(b *bench) map[string]string {
	return map[string]string{
		"cpus": fmt.Sprint(runtime.NumCPU()), "go": runtime.Version(), "kernel": kernel(), "load": loadAverage(),
		"rounds": fmt.Sprint(b.rounds), "loadFor": b.load.String(), "idleFor": b.idle.String(),
	}
}

func kernel() string {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return "unknown"
	}
	var s strings.Builder
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}
