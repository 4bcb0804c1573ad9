//go:build system

package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry/check"
)

// The test binary starts itself again, in namespaces of its own, and as what carries
// bytes to the store.
const (
	worldVariable   = "SCAFO_TEST_WORLD"
	forwardVariable = "SCAFO_TEST_FORWARD"
)

// The network of the machines: each has a namespace and a cable to one switch.
const (
	bucketIP  = "10.77.0.2"
	ingressIP = "10.77.0.3"
	clientIP  = "10.77.0.100"
	storePort = 9000
	apiPort   = 7420
	nowhere   = "02:00:00:00:00:01" // an address that no card has
	// machineDisk is the size of a machine's disk: enough for some logs and data.
	machineDisk = "192m"
)

func machineIP(i int) string { return fmt.Sprintf("10.77.0.%d", 11+i) }

// inNamespaces runs the rest of a test in namespaces that end with it: it starts the
// test binary again there, and returns false in the one that only waits.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv(worldVariable) != "" {
		return true
	}
	unshare := []string{"--net", "--mount", "--kill-child"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--user", "--map-root-user")
	}
	const probe = "mount -t tmpfs none /run && mkdir /run/netns && ip netns add probe && ip link add v0 type veth peer name v1 netns probe"
	if out, err := exec.Command("unshare", append(unshare, "sh", "-c", probe)...).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: machines in network namespaces need root, or user namespaces that may have networks: %v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(unshare, self, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "3h")
	c := exec.CommandContext(t.Context(), "unshare", args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.Env = append(os.Environ(), worldVariable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("in its namespaces: %v", err)
	}
	return false
}

// world is a fleet of several machines, each in a network namespace with a disk of its
// own, a store and an ingress in others, and this process as their visitor.
type world struct {
	*cluster
	forward *program
	dead    map[*machine]bool
	load    *visitors
}

func sh(t testing.TB, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// plug makes a namespace with a cable to the switch.
func plug(t testing.TB, name, ip string) {
	t.Helper()
	sh(t, fmt.Sprintf(`ip netns add %[1]s
ip -n switch link add %[1]s type veth peer name eth0 netns %[1]s
ip -n switch link set %[1]s master br0 up
ip -n %[1]s link set lo up
ip -n %[1]s addr add %[2]s/24 dev eth0
ip -n %[1]s link set eth0 up`, name, ip))
}

// within is a command line in a namespace.
func within(name string, args ...string) []string {
	return append([]string{"netns", "exec", name}, args...)
}

func newWorld(t *testing.T, nodes int, program string) *world {
	t.Helper()
	dir := t.TempDir()
	sh(t, `mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
ip netns add switch
ip -n switch link add br0 type bridge
ip -n switch link set br0 up
ip link add eth0 type veth peer name client netns switch
ip -n switch link set client master br0 up
ip addr add `+clientIP+`/24 dev eth0
ip link set eth0 up`)
	plug(t, "bucket", bucketIP)
	plug(t, "ingress", ingressIP)
	w := &world{dead: map[*machine]bool{}}
	w.cluster = &cluster{fleet: &fleet{t: t, state: dir, profile: filepath.Join(dir, "profile.json")}, store: &storeProcess{state: filepath.Join(dir, "store")}}
	w.requestClient = &http.Client{Timeout: patience, Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !strings.HasPrefix(address, "10.77.") {
				address = ingressIP + ":80"
			}
			return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, address)
		},
	}}
	t.Cleanup(w.requestClient.CloseIdleConnections)
	t.Cleanup(w.noProcessIsLeft)
	w.startStore()
	w.variables = []string{"AWS_ACCESS_KEY_ID=" + w.store.AccessKey, "AWS_SECRET_ACCESS_KEY=" + w.store.SecretKey}
	w.must(append([]string{"init", "--key-file", filepath.Join(dir, "admin.jwk"), "--node-advertise", w.url(0), "--node-id", "x"}, w.where()...)...)
	for i := range nodes {
		m := &machine{id: fmt.Sprintf("n%d", i+1), api: fmt.Sprintf("%s:%d", machineIP(i), apiPort)}
		m.url = "http://" + m.api // as it is: what goes between is what is tested
		m.env = append(w.env(), "CLOCK_FILE="+w.clockFile(m))
		m.state = filepath.Join(dir, m.id)
		plug(t, m.id, machineIP(i))
		sh(t, fmt.Sprintf("mkdir %[1]s; mount -t tmpfs -o size=%[2]s none %[1]s", m.state, machineDisk))
		t.Cleanup(func() { _ = syscall.Unmount(m.state, syscall.MNT_DETACH) })
		m.args = append(within(m.id, program, "sail", "--node-id", m.id, "--node-listen", m.api, "--node-state", m.state,
			"--celld-command", bin(t, "celld-workerd"), "--ingress-token", clusterIngressToken,
			"--platform-domains", "apps.test", "--drain-route-seconds", "2"), w.where()...)
		w.machines = append(w.machines, m)
	}
	for _, m := range w.machines {
		w.power(m)
	}
	args := within("ingress", bin(t, "scafo-caddy"), "run", "--listen", ingressIP, "--http-port", "80", "--http-only", "--state", filepath.Join(dir, "ingress"))
	for i := range nodes {
		args = append(args, "--node", w.url(i))
	}
	start(t, []string{"SCAFO_INGRESS_TOKEN=" + clusterIngressToken}, "/usr/sbin/ip", args...)
	return w
}

func (w *world) url(i int) string { return fmt.Sprintf("http://%s:%d", machineIP(i), apiPort) }

// startStore runs the store on its machine's loopback, and what carries to it from
// outside.
func (w *world) startStore() {
	w.t.Helper()
	w.store.program = start(w.t, nil, "/usr/sbin/ip", within("bucket", bin(w.t, "scafo-bucket"), "--state", w.store.state)...)
	var e struct {
		Port                                 int
		Bucket, Region, AccessKey, SecretKey string
	}
	eventually(w.t, "the store says where it is", func() error {
		b, err := os.ReadFile(filepath.Join(w.store.state, "bucket.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(b, &e)
	})
	w.store.URL = fmt.Sprintf("http://%s:%d", bucketIP, storePort)
	w.store.Bucket, w.store.Region, w.store.AccessKey, w.store.SecretKey = e.Bucket, e.Region, e.AccessKey, e.SecretKey
	if w.forward == nil {
		self, err := os.Executable()
		if err != nil {
			w.t.Fatal(err)
		}
		w.forward = start(w.t, []string{fmt.Sprintf("%s=%s:%d=127.0.0.1:%d", forwardVariable, bucketIP, storePort, e.Port)},
			"/usr/sbin/ip", within("bucket", self)...)
	}
	eventually(w.t, "the store answers", func() error {
		res, err := http.Get(w.store.URL)
		if err != nil {
			return err
		}
		return res.Body.Close()
	})
}

// slowBucket delays what goes to the store: by the kernel's netem on its cable, or, where
// that is missing, by who carries the bytes.
func (w *world) slowBucket() (end func()) {
	qdisc := func(verb string, how ...string) error {
		return exec.Command("tc", append([]string{"-n", "bucket", "qdisc", verb, "dev", "eth0", "root"}, how...)...).Run()
	}
	if err := qdisc("add", "netem", "delay", "150ms", "20ms"); err == nil {
		return func() { _ = qdisc("del") }
	}
	w.t.Log("this kernel has no netem: the store's forwarder delays instead")
	_ = w.forward.Process.Signal(syscall.SIGUSR1)
	return func() { _ = w.forward.Process.Signal(syscall.SIGUSR2) }
}

// forward carries connections from one address to another ("from=to"), and delays what
// is sent to it by 150 ms from a SIGUSR1 to a SIGUSR2.
func forward(where string) error {
	from, to, _ := strings.Cut(where, "=")
	var slow atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			slow.Store(s == syscall.SIGUSR1)
		}
	}()
	l, err := net.Listen("tcp", from)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			d, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer d.Close()
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, d)
			}()
			b := make([]byte, 64<<10)
			for {
				n, err := c.Read(b)
				if slow.Load() {
					time.Sleep(150 * time.Millisecond)
				}
				if _, werr := d.Write(b[:n]); err != nil || werr != nil {
					return
				}
			}
		}()
	}
}

// power starts a machine and waits until its node answers.
func (w *world) power(m *machine) {
	w.t.Helper()
	m.program = start(w.t, m.env, "/usr/sbin/ip", m.args...)
	w.t.Cleanup(func() { w.signalAll(m, syscall.SIGKILL) }) // the end of a test is no drain
	delete(w.dead, m)
	eventually(w.t, m.id+" answers", func() error {
		select {
		case <-m.done:
			w.t.Fatalf("%s ended: %v\n%s", m.id, m.err, m.out)
		default:
		}
		return w.healthy(m)
	})
}

// powerOff ends everything on a machine at once, and its cable is dead before that.
func (w *world) powerOff(m *machine) {
	w.t.Helper()
	w.dead[m] = true
	sh(w.t, "ip -n "+m.id+" link set eth0 down")
	for pid := range w.belongsTo(m) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-m.done
}

func (w *world) plugIn(m *machine) { sh(w.t, "ip -n "+m.id+" link set eth0 up") }

// everything on a machine gets a signal.
func (w *world) signalAll(m *machine, s syscall.Signal) {
	for pid := range w.belongsTo(m) {
		_ = syscall.Kill(pid, s)
	}
}

// cut takes a machine off from others: what it sends to them goes nowhere, and nobody
// tells it so.
func (w *world) cut(m *machine, ips ...string) {
	w.t.Helper()
	for _, ip := range ips {
		sh(w.t, fmt.Sprintf("ip -n %s neigh replace %s lladdr %s dev eth0 nud permanent", m.id, ip, nowhere))
	}
}

func (w *world) join(m *machine, ips ...string) {
	w.t.Helper()
	for _, ip := range ips {
		sh(w.t, fmt.Sprintf("ip -n %s neigh del %s dev eth0", m.id, ip))
	}
}

// others are the addresses of all machines but one.
func (w *world) others(m *machine) (out []string) {
	for i, o := range w.machines {
		if o != m {
			out = append(out, machineIP(i))
		}
	}
	return out
}

// home is a machine that runs an application, by what the machines say themselves.
func (w *world) home(application string) *machine {
	w.t.Helper()
	return w.findMachine(application+" runs somewhere", func(m *machine, s scafo.DaemonState) *machine {
		for _, p := range s.Processes {
			if p.Application == application && p.State == scafo.ProcessReady {
				return m
			}
		}
		return nil
	})
}

// coordinator is the machine that has the lease.
func (w *world) coordinator() *machine {
	w.t.Helper()
	return w.findMachine("somebody coordinates", func(_ *machine, s scafo.DaemonState) *machine {
		for _, c := range w.machines {
			if s.Coordinator != nil && s.Coordinator.Node == c.id && !w.dead[c] {
				return c
			}
		}
		return nil
	})
}

// findMachine waits until one of the machines that live tells of the one that is looked for.
func (w *world) findMachine(what string, look func(*machine, scafo.DaemonState) *machine) (found *machine) {
	w.t.Helper()
	eventually(w.t, what, func() error {
		for _, m := range w.machines {
			if w.dead[m] {
				continue
			}
			s, err := w.stateOf(m)
			if err != nil {
				return err
			}
			if found = look(m, s); found != nil {
				return nil
			}
		}
		return errors.New("no machine says so")
	})
	return found
}

// whole is nil when every application runs on as many machines as it shall, and nothing
// beside that runs anywhere, by what the machines say themselves.
func (w *world) whole() error {
	running := map[string]int{}
	for _, m := range w.machines {
		if w.dead[m] {
			continue
		}
		s, err := w.stateOf(m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.id, err)
		}
		for _, p := range s.Processes {
			if p.State != scafo.ProcessReady {
				return fmt.Errorf("%s on %s is %s", p.Application, m.id, p.State)
			}
			running[p.Application]++
		}
	}
	for application, n := range worldReplicas {
		if running[application] != n {
			return fmt.Errorf("%s runs on %d machines, not on %d", application, running[application], n)
		}
		if status, body, err := w.get("http://" + application + ".apps.test/"); err != nil || status != http.StatusOK {
			return fmt.Errorf("%s: %d %q %w", application, status, body, orNil(err))
		}
	}
	return nil
}

// bucketIsSound checks the whole bucket.
func (c *cluster) bucketIsSound() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if wrong, err := check.All(ctx, c.bucket()); err != nil || len(wrong) > 0 {
		c.t.Errorf("the bucket: %q %v", wrong, err)
	}
}
