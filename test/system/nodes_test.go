//go:build system

package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/paralleltest"
)

// storeProcess is an S3 store that several nodes share: the embedded store's own
// program, started by hand.
type storeProcess struct {
	*program
	URL, Bucket, Region  string
	AccessKey, SecretKey string
	state                string
}

func startStore(t testing.TB) *storeProcess {
	t.Helper()
	s := &storeProcess{state: t.TempDir()}
	s.start(t)
	return s
}

func (s *storeProcess) start(t testing.TB) {
	t.Helper()
	s.program = start(t, nil, bin(t, "scafo"), "bucket", "--state", s.state)
	eventually(t, "the store answers", func() error {
		b, err := os.ReadFile(filepath.Join(s.state, "bucket.json"))
		if err != nil {
			return err
		}
		var e struct {
			Port                                 int
			Bucket, Region, AccessKey, SecretKey string
		}
		if err := json.Unmarshal(b, &e); err != nil {
			return err
		}
		s.URL, s.Bucket, s.Region, s.AccessKey, s.SecretKey = fmt.Sprintf("http://127.0.0.1:%d", e.Port), e.Bucket, e.Region, e.AccessKey, e.SecretKey
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", e.Port), time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// machine is one `scafo sail` over a shared store.
type machine struct {
	*program
	id, api, state string
	metrics        string
	url            string // its API, every exchange held to the document
	args           []string
	env            []string
}

// cluster is several machines and their store.
type cluster struct {
	*fleet
	store    *storeProcess
	machines []*machine
}

const clusterIngressToken = "the-ingress-token-of-the-test"

// newCluster starts so many machines, each with these arguments more; {id} in them is
// the machine's id.
func newCluster(t testing.TB, nodes int, more ...string) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{store: startStore(t)}
	c.fleet = &fleet{t: t, state: dir, profile: filepath.Join(dir, "profile.json")}
	c.fleet.requestClient = &http.Client{Timeout: patience}
	env := append(c.env(), "AWS_ACCESS_KEY_ID="+c.store.AccessKey, "AWS_SECRET_ACCESS_KEY="+c.store.SecretKey)
	where := []string{"--bucket-url", "s3://" + c.store.Bucket + "/one", "--bucket-endpoint", c.store.URL, "--bucket-region", c.store.Region}
	t.Cleanup(c.noProcessIsLeft)
	for i := range nodes {
		m := &machine{id: fmt.Sprintf("n%d", i+1), api: "127.0.0.1:" + strconv.Itoa(freePort(t)), metrics: "127.0.0.1:" + strconv.Itoa(freePort(t)), env: env}
		m.state, m.url = filepath.Join(dir, m.id), documented(t, m.api)
		first := paralleltest.Ports(t, paralleltest.MostPorts)
		m.args = append([]string{"sail", "--node-id", m.id, "--node-listen", m.api, "--node-state", m.state, "--metrics-listen", m.metrics,
			"--celld-command", bin(t, "celld-workerd"), "--celld-ports", fmt.Sprintf("%d-%d", first, first+paralleltest.MostPorts-1),
			"--ingress-token", clusterIngressToken, "--platform-domains", "apps.test", "--drain-route-seconds", "1"}, where...)
		for _, a := range more {
			m.args = append(m.args, strings.ReplaceAll(a, "{id}", m.id))
		}
		c.machines = append(c.machines, m)
	}
	initArgs := append([]string{"init", "--key-file", filepath.Join(dir, "admin.jwk"), "--node-listen", c.machines[0].api, "--node-advertise", c.machines[0].url, "--node-id", "x"}, where...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin(t, "scafo"), initArgs...)
	cmd.Env = append(environment(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	for _, m := range c.machines {
		c.run(m)
	}
	return c
}

func (c *cluster) run(m *machine) {
	c.t.Helper()
	m.program = start(c.t, m.env, bin(c.t, "scafo"), m.args...)
	eventually(c.t, m.id+" answers", func() error {
		select {
		case <-m.done:
			c.t.Fatalf("%s ended: %v\n%s", m.id, m.err, m.out)
		default:
		}
		return c.healthy(m)
	})
}

// healthy is nil when the machine's node says so.
func (c *cluster) healthy(m *machine) error {
	res, err := c.requestClient.Get("http://" + m.api + scafo.HealthPath)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// stateOf is what one machine says of itself.
func (c *cluster) stateOf(m *machine) (scafo.DaemonState, error) {
	var s scafo.DaemonState
	out, errs, err := c.scafo("status", "--json", "--node", m.url)
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, errs)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// metric is one line of a machine's metrics, by its name with its labels.
func (c *cluster) metric(m *machine, series string) (float64, error) {
	_, page, err := c.get("http://" + m.metrics + "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s tells no %s", m.id, series)
}

// routes is the routing document of one machine.
func (c *cluster) routes(m *machine) (scafo.FleetRouting, error) {
	var r scafo.FleetRouting
	req, err := http.NewRequest(http.MethodGet, m.url+"/v1/ingress/routes", nil)
	if err != nil {
		return r, err
	}
	req.Header.Set("Authorization", "Bearer "+clusterIngressToken)
	res, err := c.requestClient.Do(req)
	if err != nil {
		return r, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return r, fmt.Errorf("%s answers %d", m.id, res.StatusCode)
	}
	return r, json.NewDecoder(res.Body).Decode(&r)
}

// ask asks an application through the first upstream of its route.
func (c *cluster) ask(application string) (string, error) {
	for _, m := range c.machines {
		r, err := c.routes(m)
		if err != nil {
			continue
		}
		for _, route := range r.Routes {
			if route.Application != application || len(route.Upstreams) == 0 {
				continue
			}
			status, body, err := c.get(route.Upstreams[0].URL)
			if err != nil || status != http.StatusOK {
				return "", fmt.Errorf("%d %q %w", status, body, orNil(err))
			}
			return body, nil
		}
	}
	return "", errors.New("no route")
}

func orNil(err error) error {
	if err == nil {
		return errors.New("not 200")
	}
	return err
}

// Two machines on one bucket: one coordinates, both serve, and what one of them
// accepted is everywhere.
func TestTwoMachinesShareTheWork(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	for i := range 4 {
		name := fmt.Sprintf("app%d", i)
		c.must("deploy", worker(t, name, `export default { fetch() { return new Response("`+name+`") } }`), "--node", c.machines[i%2].url)
	}
	c.must("deploy", c.example("counter"), "--replicas", "2")

	placed := map[string]int{}
	var coordinators []string
	for _, m := range c.machines {
		s, err := c.stateOf(m)
		if err != nil {
			t.Fatal(err)
		}
		if s.Coordinator == nil {
			t.Fatalf("%s knows no coordinator", m.id)
		}
		coordinators = append(coordinators, s.Coordinator.Node)
		for _, p := range s.Processes {
			if p.State == scafo.ProcessReady {
				placed[m.id]++
			}
		}
	}
	if coordinators[0] != coordinators[1] {
		t.Errorf("two coordinators: %v", coordinators)
	}
	// Four of one replica and one of two: spread by load, three each.
	if placed["n1"] != 3 || placed["n2"] != 3 {
		t.Errorf("placed %v, want 3 and 3", placed)
	}
	for i := range 4 {
		name := fmt.Sprintf("app%d", i)
		if body, err := c.ask(name); err != nil || body != name {
			t.Errorf("%s: %q %v", name, body, err)
		}
	}
	// The metrics of both say the same.
	for series, want := range map[string]float64{
		"scafo_lease_held": 1, "scafo_placements": 6, `scafo_processes{state="ready"}`: 6, `scafo_nodes{state="live"}`: 4,
		`scafo_deploys_total{code="",state="deployed"}`: 5, `scafo_process_events_total{event="started"}`: 6,
	} {
		sum := 0.0
		for _, m := range c.machines {
			v, err := c.metric(m, series)
			if err != nil {
				t.Error(err)
			}
			sum += v
		}
		if sum != want {
			t.Errorf("%s is %g over both machines, want %g", series, sum, want)
		}
	}
	// Both replicas lead to the one object. The other node hears of them in a moment.
	seen := map[int]bool{}
	var upstreams []scafo.Upstream
	eventually(t, "a node names both replicas", func() error {
		r, err := c.routes(c.machines[1])
		if err != nil {
			return err
		}
		for _, route := range r.Routes {
			if route.Application == "counter" && len(route.Upstreams) == 2 {
				upstreams = route.Upstreams
				return nil
			}
		}
		return fmt.Errorf("%+v", r.Routes)
	})
	for range 3 {
		for _, u := range upstreams {
			_, body, err := c.get(u.URL)
			if err != nil {
				t.Fatal(err)
			}
			n := number(t, body)
			if seen[n] {
				t.Errorf("%d was answered twice", n)
			}
			seen[n] = true
		}
	}
	if len(seen) != 6 || !seen[6] {
		t.Errorf("six requests counted %v", seen)
	}
}

// A machine that dies takes nothing with it.
func TestAMachineDies(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 2)
	c.must("deploy", c.example("counter"), "--replicas", "1")
	for range 5 {
		if _, err := c.ask("counter"); err != nil {
			t.Fatal(err)
		}
	}
	var home *machine
	for _, m := range c.machines {
		s, err := c.stateOf(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Processes) > 0 {
			home = m
		}
	}
	if home == nil {
		t.Fatal("counter runs nowhere")
	}
	// The whole machine: the daemon, the runtime, everything.
	home.kill(t)
	for pid := range c.belongsTo(home) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	began := time.Now()
	eventually(t, "the counter answers elsewhere", func() error {
		body, err := c.ask("counter")
		if err != nil {
			return err
		}
		if n := number(t, body); n != 6 {
			t.Fatalf("the count is %d, want 6: a write was lost", n)
		}
		return nil
	})
	t.Logf("answered elsewhere after %s", time.Since(began).Round(100*time.Millisecond))
}

func (c *cluster) belongsTo(m *machine) map[int]string {
	one := &fleet{t: c.t, state: m.state}
	return one.belongs()
}

// The store goes away while applications run, and comes back.
func TestTheStoreIsAway(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 1)
	dir := worker(t, "plain", `export default { fetch() { return new Response("plain") } }`)
	c.must("deploy", dir)
	c.store.program.stop(t)
	if body, err := c.ask("plain"); err != nil || body != "plain" {
		t.Errorf("without the store: %q %v", body, err)
	}
	_, errs, err := c.scafo("deploy", dir, "--no-wait")
	if err == nil {
		t.Error("a deploy without a store is accepted")
	}
	if want := string(scafo.CodeStoreUnavailable); !contains(errs, want) {
		t.Errorf("the refusal does not say %s: %s", want, errs)
	}
	c.store.start(t)
	eventually(t, "deploys are taken again", func() error {
		_, errs, err := c.scafo("deploy", dir)
		if err != nil {
			return errors.New(errs)
		}
		return nil
	})
}

// A node that starts before its store waits for it.
func TestTheStoreIsLate(t *testing.T) {
	paralleltest.Beside(t)
	c := newCluster(t, 1)
	m := c.machines[0]
	m.program.stop(t)
	c.store.program.stop(t)
	m.program = start(t, m.env, bin(t, "scafo"), m.args...)
	eventually(t, "the node says what it waits for", func() error {
		if !contains(m.out.String(), "does not answer") {
			return errors.New("not yet")
		}
		return nil
	})
	// Who calls it meanwhile is not left hanging.
	began := time.Now()
	_, err := c.stateOf(m)
	if err == nil || !contains(err.Error(), string(scafo.CodeStoreUnavailable)) || time.Since(began) > patience/2 {
		t.Errorf("a call meanwhile, after %s: %v", time.Since(began), err)
	}
	if err := c.healthy(m); err == nil {
		t.Error("a node that waits for its bucket calls itself healthy")
	}
	c.store.start(t)
	eventually(t, "the node answers", func() error {
		return c.healthy(m)
	})
}
