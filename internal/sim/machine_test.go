package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/supervise"
)

// machine is one machine of the fleet: its clocks, its way to the store, its disk,
// and the processes on it, which outlive the daemon that started them. All of it is
// guarded by the world's mu but for what never changes.
type machine struct {
	w    *world
	id   string
	rate float64 // of its monotonic clock, against true time
	disk string  // where deploys are staged

	skew    time.Duration // of its time of day
	weather weather
	trap    trap // the zero value is none
	boot    int
	lives   int
	life    *life            // the daemon that runs; nil for none
	procs   map[string]*proc // by uid
	kept    map[string]bool  // uids that left something on disk
	ports   int
	// calm is since when nothing was done to this machine.
	calm time.Time
}

// proc is one process of a runtime.
type proc struct {
	app, uid  string
	pid       int
	port      int
	state     scafo.ProcessState
	wanted    string // the version that its daemon asked for
	begunFor  string // the same when it was started
	serves    string
	refused   *scafo.Refusal
	exit      *scafo.Exit
	restarts  int
	changes   int       // counts what was begun with it, so that only the latest is ended
	forgotten bool      // the daemon of this machine does not know of it
	astray    time.Time // since when it runs where it is not placed; zero while it may
}

func (m *machine) url(p *proc) string      { return fmt.Sprintf("http://%s.example:%d", m.id, p.port) }
func (m *machine) internal(p *proc) string { return fmt.Sprintf("http://%s.internal:%d", m.id, p.port) }

// The times of a runtime.
const (
	quickStart, slowStart   = 100 * time.Millisecond, 2 * time.Second
	quickReload, slowReload = 10 * time.Millisecond, 300 * time.Millisecond
	quickStop, slowStop     = 50 * time.Millisecond, 3 * time.Second
	lookAgain               = time.Second // how soon a runtime that serves another version is told again
	crashPause              = time.Second
)

// alive is whether the process runs, and not only waits for its next start.
func (p *proc) alive() bool {
	return p.state != scafo.ProcessBackoff && p.state != scafo.ProcessStopped
}

// after ends what was begun with the process just now, unless something else was
// since. The caller holds mu, and f is called holding it.
func (m *machine) after(p *proc, d time.Duration, f func()) {
	p.changes++
	mine := p.changes
	later(d, func() {
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		if m.procs[p.uid] == p && p.changes == mine {
			f()
			m.changed()
		}
	})
}

// changed tells the daemon that runs that its processes did. The caller holds mu.
func (m *machine) changed() {
	if m.life != nil {
		select {
		case m.life.changes <- struct{}{}:
		default:
		}
	}
}

func (m *machine) dice(what string, p *proc) dice {
	return newDice(m.w.seed, "process", m.id, what, p.uid, fmt.Sprint(p.pid, p.changes))
}

// start starts a process. The caller holds mu.
func (m *machine) start(w supervise.Want) {
	m.ports++
	p := &proc{app: w.Application, uid: w.UID, pid: m.ports, port: 20000 + m.ports, wanted: w.Version}
	m.procs[w.UID], m.kept[w.UID] = p, true
	m.run(p)
}

// run lets a process begin. The caller holds mu.
func (m *machine) run(p *proc) {
	p.state, p.serves, p.begunFor = scafo.ProcessStarting, "", p.wanted
	m.w.trace.say(m.id, "%s starts, pid %d, for %s", p.app, p.pid, p.wanted)
	m.after(p, m.dice("start", p).between(quickStart, slowStart), func() {
		version := m.w.pointer(p.app, p.uid)
		if version == "" || strings.HasPrefix(version, badVersion) {
			p.exit = &scafo.Exit{Code: 1, Version: p.begunFor}
			m.backOff(p)
			return
		}
		m.w.everReady[m.url(p)] = true
		p.state, p.serves, p.refused = scafo.ProcessReady, version, nil
		m.w.trace.say(m.id, "%s is ready, pid %d, serves %s", p.app, p.pid, version)
		if version != p.wanted {
			m.reload(p, lookAgain)
		}
	})
}

// backOff has a process that crashed begin again. The caller holds mu.
func (m *machine) backOff(p *proc) {
	p.state, p.serves = scafo.ProcessBackoff, ""
	p.restarts++
	m.w.trace.say(m.id, "%s crashed, for %s", p.app, p.wanted)
	m.after(p, crashPause<<min(p.restarts, 4), func() { m.begin(p) })
}

// begin starts a process again. The caller holds mu.
func (m *machine) begin(p *proc) {
	m.ports++
	p.pid, p.port = m.ports, 20000+m.ports
	m.run(p)
}

// reload has a process look at its pointer. The caller holds mu.
func (m *machine) reload(p *proc, least time.Duration) {
	m.after(p, least+m.dice("reload", p).between(quickReload, slowReload), func() {
		version := m.w.pointer(p.app, p.uid)
		switch {
		case strings.HasPrefix(version, badVersion):
			p.refused = &scafo.Refusal{Version: version, Detail: "SyntaxError: it is bad"}
			m.w.trace.say(m.id, "%s refuses %s", p.app, version)
		case version != "":
			p.serves, p.refused = version, nil
			m.w.trace.say(m.id, "%s serves %s, wanted is %s", p.app, version, p.wanted)
		}
		if version != p.wanted {
			m.reload(p, lookAgain)
		}
	})
}

// stop drains a process and ends it. The caller holds mu.
func (m *machine) stop(p *proc) {
	if p.state == scafo.ProcessDraining {
		return
	}
	d := m.dice("stop", p).between(quickStop, slowStop)
	if !p.alive() {
		d = 0
	}
	p.state = scafo.ProcessDraining
	m.after(p, d, func() {
		delete(m.procs, p.uid)
		m.w.trace.say(m.id, "%s is gone, pid %d", p.app, p.pid)
	})
}

// pointer is the version that a runtime finds in the store.
func (w *world) pointer(app, uid string) string {
	o, err := w.store.Get(context.Background(), registry.RuntimePrefix(app, uid)+"deploy/current.json")
	if err != nil {
		return ""
	}
	var p struct{ Version string }
	if json.Unmarshal(o.Body, &p) != nil {
		return ""
	}
	return p.Version
}

// supervisor is what a daemon has of the processes of its machine.
type supervisor struct{ l *life }

func (s supervisor) Changes() <-chan struct{} { return s.l.changes }

func (s supervisor) Statuses() []scafo.ProcessStatus {
	m := s.l.m
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	out := []scafo.ProcessStatus{}
	for _, uid := range slices.Sorted(maps.Keys(m.procs)) {
		p := m.procs[uid]
		if p.forgotten {
			continue
		}
		st := scafo.ProcessStatus{
			Application: p.app, UID: p.uid, State: p.state, Wanted: p.wanted, Deployment: p.serves, Refused: p.refused,
			LastExit: p.exit, Restarts: p.restarts, CelldVersion: runtimeVersion,
		}
		if p.alive() {
			st.PID, st.URL, st.Internal = p.pid, m.url(p), m.internal(p)
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b scafo.ProcessStatus) int {
		return strings.Compare(a.Application+"/"+a.UID, b.Application+"/"+b.UID)
	})
	return out
}

func (s supervisor) Set(wants []supervise.Want) {
	if !s.l.awake(context.Background(), "set") {
		return
	}
	m := s.l.m
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.life != s.l {
		return
	}
	named := map[string]bool{}
	for _, w := range wants {
		named[w.UID] = true
		p, ok := m.procs[w.UID]
		switch {
		case !ok:
			m.start(w)
		case p.state == scafo.ProcessDraining:
			m.after(p, m.dice("stop", p).between(quickStop, slowStop), func() { // it goes, and its successor comes
				delete(m.procs, p.uid)
				m.start(w)
			})
		case p.wanted != w.Version:
			p.wanted, p.forgotten = w.Version, false
			switch p.state {
			case scafo.ProcessReady:
				m.reload(p, 0)
			case scafo.ProcessBackoff: // another version is another chance
				m.begin(p)
			}
		default:
			p.forgotten = false
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(m.procs)) {
		if p := m.procs[uid]; !named[uid] && !p.forgotten {
			m.stop(p)
		}
	}
	m.changed()
}

func (s supervisor) Kept() []string {
	m := s.l.m
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return slices.Sorted(maps.Keys(m.kept))
}

// Stop knows forgotten processes too: they hold their directory's lock.
func (s supervisor) Stop(ctx context.Context, uid string, _ time.Duration) error {
	if !s.l.awake(ctx, "stop"+uid) {
		return context.Canceled
	}
	m := s.l.m
	for {
		m.w.mu.Lock()
		p, ok := m.procs[uid]
		if m.life != s.l {
			ok = false
		}
		if ok {
			p.forgotten = false
			m.stop(p)
			m.changed()
		}
		m.w.mu.Unlock()
		if !ok {
			return nil
		}
		if !s.l.sleep(ctx, quickStop) {
			return context.Canceled
		}
	}
}

func (s supervisor) Forget(uid string) error {
	m := s.l.m
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.life != s.l {
		return context.Canceled
	}
	if m.procs[uid] != nil {
		return fmt.Errorf("%s runs", uid)
	}
	delete(m.kept, uid)
	return nil
}

func (s supervisor) StopAll(ctx context.Context) error {
	m := s.l.m
	m.w.mu.Lock()
	uids := slices.Sorted(maps.Keys(m.procs))
	uids = slices.DeleteFunc(uids, func(uid string) bool { return m.procs[uid].forgotten })
	m.w.mu.Unlock()
	for _, uid := range uids {
		if err := s.Stop(ctx, uid, 0); err != nil {
			return err
		}
	}
	return nil
}

// runtimes are the runtimes of other machines, by their internal addresses.
type runtimes struct{ l *life }

func (r runtimes) at(ctx context.Context, internal string) (*machine, *proc, error) {
	w := r.l.m.w
	if !r.l.awake(ctx, "runtime"+internal) || !r.l.sleep(ctx, r.l.dice("runtime", internal).between(quickest, slowest)) {
		return nil, nil, errUnreachable
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		for _, p := range m.procs {
			if m.internal(p) == internal && p.alive() && !w.cut[pair(r.l.m.id, m.id)] {
				return m, p, nil
			}
		}
	}
	return nil, nil, errUnreachable
}

func (r runtimes) Serves(ctx context.Context, internal string) (string, error) {
	m, p, err := r.at(ctx, internal)
	if err != nil {
		return "", err
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return p.serves, nil
}

func (r runtimes) Shutdown(ctx context.Context, internal string) error {
	m, p, err := r.at(ctx, internal)
	if err != nil {
		return err
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.trace.say(r.l.name, "asks %s of %s to shut down", p.app, m.id)
	m.stop(p)
	m.changed()
	return nil
}
