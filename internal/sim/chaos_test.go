package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// options say how long a run is and what may happen in it.
type options struct {
	nodes   int
	apps    []string
	mishaps int
}

func usual() options { return options{nodes: 3, apps: []string{"shop", "blog", "shop-x"}, mishaps: 30} }

const (
	// step is how often it is looked at what no write shows.
	step = 700 * time.Millisecond
	// restWithin is how long after the last fault everything has to be as it should:
	// what is longest is a deploy whose node died, which is judged by its age.
	restWithin = 8 * time.Minute
	// restAtLeast is how long it has to stay so: late requests still arrive.
	restAtLeast = 5 * time.Minute
	// exileRest is how long the machines that were removed stay so once nothing goes
	// wrong any more: a coordinator has to be found first, and what a request that is
	// late wrote has to be found.
	exileRest = 4 * time.Minute
)

// run is a whole run: a fleet, its users, what goes wrong, and the rest after it.
func (w *world) run(o options) {
	if err := w.found(); err != nil {
		w.violate("the fleet cannot be founded: %v", err)
		return
	}
	for _, id := range w.ids {
		w.start(w.machines[id])
	}
	w.users.begin(o.apps)
	d := newDice(w.seed, "mishaps")
	for range o.mishaps {
		w.wait(d.between(50*time.Millisecond, 14*time.Second))
		if w.violated() != "" {
			break
		}
		w.mishap(d)
	}
	w.calm()
	w.users.end()
	w.settle()
	for _, id := range w.ids {
		w.mu.Lock()
		l := w.machines[id].life
		w.mu.Unlock()
		if l != nil {
			w.end(l)
		}
	}
	time.Sleep(latest + time.Minute) // what is under way arrives, or gives up
}

// wait lets time pass, and looks at the fleet meanwhile.
func (w *world) wait(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && w.violated() == ""; {
		time.Sleep(min(step, time.Until(end)))
		w.tick()
	}
}

// calm ends every fault: machines run, and reach each other and the store.
func (w *world) calm() {
	w.trace.say("", "all faults end")
	w.mu.Lock()
	clear(w.cut)
	for _, m := range w.machines {
		m.weather, m.trap, m.calm = weather{}, trap{}, time.Now()
		if m.life != nil {
			m.life.stopped = time.Time{}
		}
	}
	w.mu.Unlock()
	for _, id := range w.ids {
		w.start(w.machines[id])
	}
}

// settle waits for the fleet to come to rest, and looks whether it stays so and
// whether anything was lost.
func (w *world) settle() {
	if w.violated() != "" {
		return
	}
	w.exile()
	begun := time.Now()
	if why := w.comeToRest(restWithin); why != "" {
		w.violate("%s after the last fault: %s", restWithin, why)
		return
	}
	w.trace.say("", "at rest after %s", time.Since(begun).Round(time.Second))
	w.wait(restAtLeast)
	why := w.unrest()
	if why != "" && w.users.straighten() { // a drain arrived late
		why = w.comeToRest(restWithin)
	}
	if why != "" {
		w.violate("it was at rest, and is not any more: %s", why)
	}
	if why := w.users.lost(); why != "" {
		w.violate("%s", why)
	}
}

// exile leaves the machines that were removed outside for a while, looks that nothing is
// left of them there, and admits them.
func (w *world) exile() {
	if len(w.model.exiles()) == 0 {
		return
	}
	for begun := time.Now(); time.Since(begun) < exileRest && w.violated() == ""; {
		w.wait(3 * step)
		for _, id := range w.ids {
			w.start(w.machines[id]) // a machine that comes back with its old disk
		}
	}
	if why := w.banished(); why != "" {
		w.violate("%s after the last fault: %s", exileRest, why)
	}
	w.users.readmit()
}

// comeToRest waits until everything is as it should be, and says what is not when the
// time is over.
func (w *world) comeToRest(within time.Duration) string {
	begun := time.Now()
	for {
		why := w.unrest()
		if why == "" || time.Since(begun) >= within || w.violated() != "" {
			return why
		}
		w.wait(3 * step)
		for _, id := range w.ids {
			w.start(w.machines[id]) // one that was asked to stop before is started again
		}
		w.users.straighten()
	}
}

// mishap is one thing that goes wrong, or that ends.
func (w *world) mishap(d dice) {
	m := w.machines[pick(d, w.ids)]
	w.mu.Lock()
	l := m.life
	m.calm = time.Now()
	w.mu.Unlock()
	if l == nil {
		w.start(m)
		return
	}
	switch d.IntN(21) {
	case 0, 1:
		w.trace.say(m.id, "kill -9 of the daemon")
		w.end(l)
	case 2:
		w.power(m, l)
	case 3, 4:
		w.cutOff(d, m)
	case 5, 6:
		w.set(m, "the way to the store is cut", weather{cut: true})
	case 7, 8, 9:
		w.storm(d, m)
	case 10:
		w.set(m, "the way to the store is good", weather{})
	case 11:
		w.pause(d, l)
	case 12:
		w.jump(d, m)
	case 13:
		w.sigterm(l)
	case 14:
		w.crash(d, m)
	case 15:
		w.forget(d, m, l)
	case 16, 17, 18, 19:
		w.trap(d, m)
	default:
		w.outage(d)
	}
}

func (w *world) set(m *machine, what string, wx weather) {
	w.trace.say(m.id, "%s", what)
	w.mu.Lock()
	defer w.mu.Unlock()
	m.weather = wx
}

// power is a machine that loses its power: its processes go with the daemon, and what
// was on its disk stays.
func (w *world) power(m *machine, l *life) {
	w.trace.say(m.id, "loses its power")
	w.mu.Lock()
	clear(m.procs)
	m.boot++
	w.mu.Unlock()
	w.end(l)
	w.mu.Lock()
	clear(m.procs)
	w.mu.Unlock()
}

// cutOff cuts a machine off from another, or from all, or ends that.
func (w *world) cutOff(d dice, m *machine) {
	other, all, cut := pick(d, w.ids), d.chance(0.3), d.chance(0.6)
	w.trace.say(m.id, "cut off from %s: %v, from all: %v", other, cut, all)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.ids {
		if id != m.id && (all || id == other) {
			w.cut[pair(m.id, id)] = cut
		}
	}
}

// storm makes a machine's way to the store a bad one.
func (w *world) storm(d dice, m *machine) {
	wx := weather{slow: d.IntN(12)}
	for _, p := range []*float64{&wx.throttled, &wx.lost, &wx.deaf, &wx.refused, &wx.late} {
		if d.chance(0.5) {
			*p = d.Float64() * 0.15
		}
	}
	if d.chance(0.3) {
		wx.slow *= 10
	}
	wx.twice = d.Float64() * 0.5
	w.set(m, fmt.Sprintf("the way to the store is bad: %+v", wx), wx)
}

// pause stops a daemon and lets it go on: SIGSTOP, or a machine that hangs.
func (w *world) pause(d dice, l *life) {
	long := d.between(time.Second, 70*time.Second)
	w.trace.say(l.name, "is stopped for %s", long)
	w.mu.Lock()
	defer w.mu.Unlock()
	l.stopped = time.Now().Add(long)
}

// trap is a call of the store before which a daemon is stopped, once.
type trap struct {
	op, prefix string
	long       time.Duration
}

// traps are the calls between two of which the world should not change, and does.
var traps = []trap{
	{op: "get", prefix: registry.PlacementPrefix},
	{op: "replace", prefix: registry.PlacementPrefix},
	{op: "replace", prefix: registry.CoordinatorKey},
	{op: "list", prefix: registry.RuntimesPrefix},
	{op: "delete", prefix: registry.RuntimesPrefix},
	{op: "delete", prefix: registry.DeployPrefix},
	{op: "get", prefix: registry.ApplicationPrefix},
	{op: "replace", prefix: registry.ApplicationPrefix},
	{op: "get", prefix: registry.DomainPrefix},
	{op: "create", prefix: registry.DomainPrefix},
	{op: "replace", prefix: registry.DomainPrefix},
	{op: "replace", prefix: registry.DeployPrefix},
	{op: "replace", prefix: registry.RuntimesPrefix},
	{op: "replace", prefix: registry.RevisionKey},
}

// trap has the daemon of a machine, this one or a later one, stop for so long that
// another takes the lease, when it next makes some call of the store.
func (w *world) trap(d dice, m *machine) {
	t := pick(d, traps)
	t.long = d.between(5*time.Second, 70*time.Second)
	w.trace.say(m.id, "will be stopped for %s before it next does %s %s", t.long, t.op, t.prefix)
	w.mu.Lock()
	defer w.mu.Unlock()
	m.trap = t
}

// sprung stops the daemon if this is the call before which it is to be stopped.
func (w *world) sprung(l *life, op, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := l.m.trap; t.op == op && strings.HasPrefix(key, t.prefix) {
		l.m.trap = trap{}
		l.stopped = time.Now().Add(t.long)
		w.trace.say(l.name, "is stopped for %s before %s %s", t.long, op, key)
	}
}

// jump sets a machine's time of day.
func (w *world) jump(d dice, m *machine) {
	skew := d.between(-wrong, wrong)
	w.trace.say(m.id, "its time of day is wrong by %s", skew)
	w.mu.Lock()
	defer w.mu.Unlock()
	m.skew = skew
}

// drainAtMost is how long a daemon that was asked to stop gets before it is killed.
const drainAtMost = time.Minute

// sigterm asks a daemon to stop.
func (w *world) sigterm(l *life) {
	w.mu.Lock()
	up := l.up
	l.leaves = up
	w.mu.Unlock()
	if !up {
		return
	}
	w.trace.say(l.name, "SIGTERM")
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainAtMost)
		defer cancel()
		err := l.loop.Drain(ctx)
		w.trace.say(l.name, "has drained: %v", err == nil)
		time.Sleep(l.dice("exit", "").between(0, 10*time.Millisecond))
		w.end(l)
	}()
}

// crash kills one process of a machine.
func (w *world) crash(d dice, m *machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uids := slices.Sorted(maps.Keys(m.procs))
	if len(uids) == 0 {
		return
	}
	if p := m.procs[pick(d, uids)]; p.alive() && p.state != scafo.ProcessDraining && !p.forgotten {
		p.exit = &scafo.Exit{Signal: "killed", Version: p.begunFor}
		m.backOff(p)
		m.changed()
	}
}

// forget kills a daemon, and has its successor not know of some of its processes.
func (w *world) forget(d dice, m *machine, l *life) {
	w.trace.say(m.id, "kill -9 of the daemon, and records of its processes are lost")
	w.end(l)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(m.procs)) {
		if d.chance(0.5) && m.procs[uid].alive() {
			m.procs[uid].forgotten = true
		}
	}
}

// outage takes the store from everybody for a while.
func (w *world) outage(d dice) {
	long := d.between(time.Second, 50*time.Second)
	w.trace.say("", "the store is away for %s", long)
	w.mu.Lock()
	was := map[string]weather{}
	for id, m := range w.machines {
		was[id], m.weather = m.weather, weather{cut: true}
	}
	w.mu.Unlock()
	w.wait(long)
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, m := range w.machines {
		m.weather, m.calm = was[id], time.Now()
	}
}
