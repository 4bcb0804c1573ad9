package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// Goals of what several machines do together.
const (
	// followerGoal: a deploy through a node that does not coordinate, until all its
	// nodes answer, in deploys of a fleet of one node. Nothing waits for a pass.
	followerGoal = 2
	// planGoal is the most that planning may take, in bare scorings of the same pairs.
	planGoal = 10
	// leaseTTL is lease.ttlSeconds by default; takeoverGoal is what is promised of it.
	leaseTTL     = 15 * time.Second
	takeoverGoal = float64(leaseTTL+6*time.Second) / float64(leaseTTL)
	// crewPorts is how many of a run's ports the runtimes of one crew get.
	crewPorts = runtimePorts / 4
	// acquainted is how long machines run before one of them is lost: by then each has
	// reached each other one, and one that was never reached is missed much later.
	acquainted = 16 * time.Second
	// lostBound is the documented bound for what ran on a machine that is lost.
	lostBound = 25 * time.Second
)

// crew is several `scafo sail` over one store.
type crew struct {
	b        *bench
	store    *countedStore
	dir      string
	profile  string
	env      []string
	machines []*crewMachine
	web      *http.Client
}

// crewMachine is one of them.
type crewMachine struct {
	id, api, state string
	args           []string
	cmd            *exec.Cmd
	done           chan struct{}
	client         *client.Client
	log            *os.File
}

// newCrew makes a fleet of n nodes.
func (b *bench) newCrew(ctx context.Context, n int) (c *crew, err error) {
	c = &crew{b: b, web: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if c.dir, err = b.sub("crew"); err != nil {
		return c, err
	}
	if c.store, err = b.countedStore(ctx); err != nil {
		return c, err
	}
	e := c.store.endpoint
	c.profile = filepath.Join(c.dir, "profile.json")
	c.env = environment("SCAFO_PROFILE="+c.profile, "AWS_ACCESS_KEY_ID="+e.AccessKey, "AWS_SECRET_ACCESS_KEY="+e.SecretKey,
		"AWS_CONFIG_FILE="+filepath.Join(c.dir, "none"), "AWS_SHARED_CREDENTIALS_FILE="+filepath.Join(c.dir, "none"))
	where := []string{"--bucket-url", "s3://" + e.Bucket + "/crew", "--bucket-endpoint", e.URL, "--bucket-region", e.Region}
	keyFile := filepath.Join(c.dir, "admin.jwk")
	first := 22000 + os.Getpid()%30*runtimePorts + b.crews*crewPorts
	b.crews++
	for i := range n {
		port, err := freePort()
		if err != nil {
			return c, err
		}
		m := &crewMachine{id: fmt.Sprintf("n%d", i+1), api: "127.0.0.1:" + strconv.Itoa(port)}
		m.state = filepath.Join(c.dir, m.id)
		from := first + i*crewPorts/n
		m.args = append([]string{
			"sail", "--node-id", m.id, "--node-listen", m.api, "--node-state", m.state, "--celld-command", b.program("celld-workerd"),
			"--celld-ports", fmt.Sprintf("%d-%d", from, from+crewPorts/n-1), "--ingress-token", "the-ingress-token-of-the-benchmark",
			"--platform-domains", "apps.test",
		}, where...)
		c.machines = append(c.machines, m)
	}
	if _, err := c.scafo(ctx, append([]string{"init", "--key-file", keyFile, "--node-listen", c.machines[0].api, "--node-id", "x"}, where...)...); err != nil {
		return c, err
	}
	key, _, err := keyfile.Load(keyFile)
	if err != nil {
		return c, err
	}
	for _, m := range c.machines {
		m.client, err = client.New(client.Config{
			URLs:       []string{"http://" + m.api},
			Credential: client.CredentialFunc(func(context.Context) (string, error) { return key.Token(time.Now()) }),
		})
		if err != nil {
			return c, err
		}
		if err := c.start(ctx, m); err != nil {
			return c, err
		}
	}
	return c, nil
}

// scafo runs a command and returns what it printed.
func (c *crew) scafo(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.b.program("scafo"), args...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("scafo %s: %w: %s", args[0], err, tail(string(out)))
	}
	return string(out), nil
}

// start starts a machine and waits until it answers.
func (c *crew) start(ctx context.Context, m *crewMachine) (err error) {
	if m.log, err = os.Create(m.state + ".log"); err != nil {
		return err
	}
	m.cmd = exec.Command(c.b.program("scafo"), m.args...)
	m.cmd.Env, m.cmd.Stdout, m.cmd.Stderr = c.env, m.log, m.log
	if err := m.cmd.Start(); err != nil {
		return err
	}
	m.done = make(chan struct{})
	go func() {
		_ = m.cmd.Wait() // its end is what counts
		close(m.done)
	}()
	return until(ctx, 20*time.Millisecond, func() error {
		_, err := m.client.State(ctx)
		return err
	})
}

// until waits for a condition, at most for as long as anything is waited for here.
func until(ctx context.Context, every time.Duration, cond func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		if perr := pause(ctx, every); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// stop ends everything that belongs to the crew.
func (c *crew) stop() error {
	for _, m := range c.machines {
		c.kill(m)
		if m.log != nil {
			m.log.Close()
		}
	}
	if c.store == nil {
		return nil
	}
	return c.store.stop()
}

// kill ends a whole machine: its daemon and its runtimes, by their state directory.
func (c *crew) kill(m *crewMachine) {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.done
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is a good one
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(dir, "environ")) // it may be gone
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.Contains(string(env), m.state+"/") || strings.Contains(string(cmdline), m.state+"/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// serving are the addresses at which the living machines serve an application.
func (c *crew) serving(ctx context.Context, app string) (map[*crewMachine]string, error) {
	out := map[*crewMachine]string{}
	for _, m := range c.machines {
		select {
		case <-m.done:
			continue
		default:
		}
		s, err := m.client.State(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range s.Processes {
			if p.Application == app && p.State == scafo.ProcessReady {
				out[m] = p.URL
			}
		}
	}
	return out, nil
}

// coordinator is who has the lease, by what a living machine says.
func (c *crew) coordinator(ctx context.Context, asked *crewMachine) (*crewMachine, error) {
	s, err := asked.client.State(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range c.machines {
		if s.Coordinator != nil && s.Coordinator.Node == m.id {
			return m, nil
		}
	}
	return nil, errors.New("nobody coordinates")
}

// timedRollout deploys a version through a machine, and says how long it took from the
// 202 until every address answers it.
func (c *crew) timedRollout(ctx context.Context, through *crewMachine, app string, version int, urls map[*crewMachine]string) (time.Duration, error) {
	f := &fleet{b: c.b, dir: c.dir}
	dir, want, err := f.helloProject(app, version)
	if err != nil {
		return 0, err
	}
	// The command ends with the 202.
	if _, err := c.scafo(ctx, "deploy", dir, "--no-wait", "--node", "http://"+through.api); err != nil {
		return 0, err
	}
	began := time.Now()
	var mu sync.Mutex
	var failed []error
	var all sync.WaitGroup
	for _, url := range urls {
		all.Go(func() {
			err := until(ctx, answerLook, func() error { return c.says(ctx, url, want) })
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		})
	}
	all.Wait()
	return time.Since(began), errors.Join(failed...)
}

// says is nil when an address answers with a text.
func (c *crew) says(ctx context.Context, url, want string) error {
	body, err := (&fleet{web: c.web}).get(ctx, url)
	if err == nil && !strings.Contains(body, want) {
		err = fmt.Errorf("%q", body)
	}
	return err
}

// rollouts prepares an application on every machine of a crew of n, and returns what
// times one deploy of it through a machine that does not coordinate, where there is one.
func (b *bench) rollouts(ctx context.Context, n int) (c *crew, next func() (time.Duration, error), err error) {
	if c, err = b.newCrew(ctx, n); err != nil {
		return nil, nil, err
	}
	version := 1
	next = func() (time.Duration, error) {
		version++
		urls, err := c.serving(ctx, "rollout")
		if err != nil || len(urls) != n {
			return 0, errors.Join(err, fmt.Errorf("rollout runs on %d machines of %d", len(urls), n))
		}
		holder, err := c.coordinator(ctx, c.machines[0])
		if err != nil {
			return 0, err
		}
		through := c.machines[0]
		if through == holder && n > 1 {
			through = c.machines[1]
		}
		took, err := c.timedRollout(ctx, through, "rollout", version, urls)
		if err != nil {
			return 0, err
		}
		// The deploy's own end, so that the next one does not wait for it.
		return took, until(ctx, 20*time.Millisecond, func() error {
			a, err := through.client.Application(ctx, "rollout")
			if err == nil && a.Publishing != nil {
				err = errors.New("it is still being published")
			}
			return err
		})
	}
	dir, _, err := (&fleet{b: b, dir: c.dir}).helloProject("rollout", 1)
	if err == nil {
		_, err = c.scafo(ctx, "deploy", dir, "--replicas", strconv.Itoa(n))
	}
	if err == nil { // it may have been placed before all machines were seen
		err = until(ctx, 100*time.Millisecond, func() error {
			urls, err := c.serving(ctx, "rollout")
			if err == nil && len(urls) != n {
				err = fmt.Errorf("on %d machines", len(urls))
			}
			return err
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.stop())
	}
	return c, next, nil
}

// benchFollower deploys through a follower of three nodes to all of them, in turns with
// a deploy on one node.
func benchFollower(ctx context.Context, b *bench) error {
	one, onOne, err := b.rollouts(ctx, 1)
	if err != nil {
		return err
	}
	three, onThree, err := b.rollouts(ctx, 3)
	if err != nil {
		return errors.Join(err, one.stop())
	}
	err = func() error {
		var took, base []time.Duration
		for range b.rounds {
			z, err := onOne()
			if err != nil {
				return err
			}
			t, err := onThree()
			if err != nil {
				return err
			}
			took, base = append(took, t), append(base, z)
			b.say("one node %s, a follower of three %s", ms(z), ms(t))
		}
		b.ratio("a deploy through a follower, from its 202 until all three nodes answer it, against one node", ms(median(took)), ms(median(base)), median(ratios(took, base)), followerGoal)
		return nil
	}()
	return errors.Join(err, one.stop(), three.stop())
}

// benchLost kills the machine that coordinates and one that runs an application alone,
// which may be the same, and times until another one coordinates, and until the
// application answers elsewhere.
func benchLost(ctx context.Context, b *bench) error {
	c, err := b.newCrew(ctx, 3)
	if err != nil {
		return err
	}
	err = func() error {
		holder, home, want, err := c.alone(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		c.kill(holder)
		c.kill(home)
		var left *crewMachine
		for _, m := range c.machines {
			if m != holder && m != home {
				left = m
			}
		}
		err = until(ctx, 20*time.Millisecond, func() error {
			now, err := c.coordinator(ctx, left)
			if err == nil && (now == holder || now == home) {
				err = errors.New("nobody took over")
			}
			return err
		})
		if err != nil {
			return err
		}
		takeover := time.Since(began)
		if err := until(ctx, 20*time.Millisecond, func() error { return c.anywhere(ctx, "alone", want) }); err != nil {
			return err
		}
		elsewhere := time.Since(began)
		b.ratio("kill -9 of the coordinator's machine until another one coordinates, against lease.ttlSeconds", seconds(takeover), seconds(leaseTTL), float64(takeover)/float64(leaseTTL), takeoverGoal)
		b.ratio("kill -9 of a machine until its application answers elsewhere, against the documented bound", seconds(elsewhere), seconds(lostBound), float64(elsewhere)/float64(lostBound), 1)
		return nil
	}()
	return errors.Join(err, c.stop())
}

// alone has an application on one machine, and says which, who coordinates, and what it
// answers.
func (c *crew) alone(ctx context.Context) (holder, home *crewMachine, want string, err error) {
	dir, want, err := (&fleet{b: c.b, dir: c.dir}).helloProject("alone", 1)
	if err != nil {
		return nil, nil, "", err
	}
	if _, err := c.scafo(ctx, "deploy", dir); err != nil {
		return nil, nil, "", err
	}
	if err := pause(ctx, acquainted); err != nil {
		return nil, nil, "", err
	}
	urls, err := c.serving(ctx, "alone")
	if err != nil || len(urls) != 1 {
		return nil, nil, "", errors.Join(err, fmt.Errorf("alone runs on %d machines", len(urls)))
	}
	for m := range urls {
		home = m
	}
	holder, err = c.coordinator(ctx, c.machines[0])
	return holder, home, want, err
}

// anywhere is nil when some machine serves an application with a text in its answer.
func (c *crew) anywhere(ctx context.Context, app, want string) error {
	urls, err := c.serving(ctx, app)
	if err != nil {
		return err
	}
	err = errors.New("it runs nowhere")
	for _, url := range urls {
		if err = c.says(ctx, url, want); err == nil {
			return nil
		}
	}
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// benchPlan and benchPass run the benchmarks of the packages, which reach what they do
// not export; each says its own ratio.
func benchPlan(ctx context.Context, b *bench) error {
	return b.goBench(ctx, "./internal/plan", "BenchmarkPlace", "of-bare-scoring", "10,000 applications placed on 100 nodes, against scoring each pair once", planGoal)
}

func benchPass(ctx context.Context, b *bench) error {
	return b.goBench(ctx, "./internal/reconcile", "BenchmarkPass", "of-planning-alone", "a pass over 10,000 applications when one changed, against planning alone", 0)
}

func (b *bench) goBench(ctx context.Context, pkg, name, metric, what string, most float64) error {
	cmd := exec.CommandContext(ctx, "go", "test", pkg, "-run", "^$", "-bench", "^"+name+"$", "-benchtime", fmt.Sprintf("%dx", 3*b.rounds))
	cmd.Dir = b.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, tail(string(out)))
	}
	found := regexp.MustCompile(`([\d.]+) ns/op\s+([\d.]+) ` + metric).FindSubmatch(out)
	if found == nil {
		return fmt.Errorf("%s says no %s: %s", name, metric, tail(string(out)))
	}
	took, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		return err
	}
	ratio, err := strconv.ParseFloat(string(found[2]), 64)
	if err != nil || ratio <= 0 {
		return fmt.Errorf("%s: %s: %w", name, found[2], err)
	}
	b.ratio(what, ms(time.Duration(took)), ms(time.Duration(took/ratio)), ratio, most)
	return nil
}
