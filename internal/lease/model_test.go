package lease

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

// The model has two processes and a store, and goes through every order in which
// ticks, wake-ups, writes that reach the store, answers, losses, suspicions and a
// restart can happen, up to a horizon. A process is paused for as long as nothing
// of it is chosen; a write whose answer was lost may still be applied at any later
// time; a read shows what was there when it was sent, the oldest that it can show.
//
// Step knows differences of times, seqs and fences alone, so that worlds that
// differ in nothing else are one: the model has no horizon, it is every world that
// can ever be reached.
const modelTTL = time.Duration(3)

type modelRecord struct {
	exists        bool
	node, process int8 // 0 is nobody
	fence, seq    int64
}

type modelPhase int8

const (
	none     modelPhase = iota
	sent                // on its way to the store
	answered            // the answer is on its way back
)

type modelRequest struct {
	phase   modelPhase
	sentAt  time.Duration
	rec     modelRecord // what was read, or what is to be written
	refused bool
}

type modelProcess struct {
	s           State
	life        int8 // grows at a restart
	read, write modelRequest
	ghost       modelRequest // a write that the process has given up for lost
}

type modelWorld struct {
	now      time.Duration
	rec      modelRecord
	p        [2]modelProcess
	restarts int8
	losses   int8
	suspects int8
	highest  int64 // fence of the newest acquisition
}

const modelSuspects = 1

func modelName(node, life int8) string { return string([]byte{'a' + byte(node), '0' + byte(life)}) }

func (r modelRecord) lease() scafo.Lease {
	l := scafo.Lease{Fence: r.fence, Seq: r.seq}
	if r.node != 0 {
		l.Node, l.Process = string([]byte{'a' + byte(r.node)}), modelName(r.node, r.process)
	}
	return l
}

func recordOf(l scafo.Lease) modelRecord {
	r := modelRecord{exists: true, fence: l.Fence, seq: l.Seq}
	if l.Node != "" {
		r.node, r.process = int8(l.Node[0]-'a'), int8(l.Process[1]-'0')
	}
	return r
}

type explorer struct {
	t        *testing.T
	losses   int8 // how many answers may be lost
	restarts int8 // how many processes may be executed anew
	seen     map[modelKey]struct{}
	open     []modelWorld
	takeover bool // some path had a take-over after a silent holder
	lapsed   bool // some path had a holder lapse while its record stood
	broken   bool // a broken variant was caught
	ttl      time.Duration
	// variant breaks a state after each step.
	variant func(before State, s *State, e Event, now time.Duration)
}

type modelKey [72]int8

// key is a world less what no later step can tell apart.
func (w *modelWorld) key() modelKey {
	var k modelKey
	i := 0
	put := func(v int64) {
		k[i] = int8(v)
		i++
	}
	flags := func(bs ...bool) {
		var v int64
		for n, b := range bs {
			if b {
				v |= 1 << n
			}
		}
		put(v)
	}
	// due is a time in the future, which is only ever compared with now.
	due := func(d time.Duration) { put(int64(min(max(d-w.now, 0), 100))) }
	// age is a time in the past, of which nothing older than a TTL differs.
	age := func(d time.Duration) { put(int64(min(w.now-d, w.p[0].s.TTL))) }
	// record is a record as seen from the one in the store: only the same one, or
	// the one after it, matter.
	record := func(r modelRecord) {
		lag := min(w.rec.seq-r.seq, 2)
		put(lag)
		if lag < 2 {
			put(w.rec.fence - r.fence)
		} else {
			put(0)
		}
		put(int64(r.node<<4 | r.process<<1))
		flags(r.exists)
	}
	flags(w.rec.exists)
	put(int64(w.rec.node<<4 | w.rec.process<<1))
	put(int64(w.restarts<<4 | w.losses<<2 | w.suspects))
	for n := range w.p {
		p := &w.p[n]
		s := &p.s
		flags(s.Observed, s.Exists, s.Holding, s.Suspects, s.Stale, p.read.phase == answered)
		put(int64(p.write.phase)<<4 | int64(p.ghost.phase)<<2 | int64(p.life))
		flags(p.write.refused, p.read.sentAt < s.FirstSeen, p.read.sentAt >= s.StaleAt,
			s.LastSeen < s.SuspectAt, p.read.rec.seq < s.Lease.Seq, p.read.rec.seq > s.Lease.Seq, p.write.rec.seq < s.Lease.Seq)
		if s.Observed {
			known := recordOf(s.Lease)
			known.exists = s.Exists
			record(known)
			age(s.FirstSeen)
			age(s.LastSeen)
			put(int64(min(s.LastSeen-s.FirstSeen, s.TTL)))
		}
		if s.Holding {
			due(s.Until)
			due(s.RenewAt)
		} else {
			due(s.RetryAt)
		}
		due(s.ReadAt)
		if p.read.phase == answered {
			record(p.read.rec)
			age(p.read.sentAt)
		}
		if p.write.phase != none {
			record(p.write.rec)
			age(p.write.sentAt)
		}
		if p.ghost.phase != none {
			record(p.ghost.rec)
		}
	}
	return k
}

func (x *explorer) start() modelWorld {
	var w modelWorld
	for n := range w.p {
		w.p[n].s = Start(string([]byte{'b' + byte(n)}), modelName(int8(n+1), 0), x.ttl, 0)
	}
	return w
}

// step gives a process an event, and sends what it asks for.
func (x *explorer) step(w modelWorld, n int, e Event) modelWorld {
	p := &w.p[n]
	var a Action
	before := p.s
	p.s, a = Step(p.s, e, w.now)
	if x.variant != nil {
		x.variant(before, &p.s, e, w.now)
	}
	if a.Read {
		p.read = modelRequest{phase: answered, sentAt: w.now, rec: w.rec}
	}
	if a.Write != nil {
		p.write = modelRequest{phase: sent, sentAt: w.now, rec: recordOf(*a.Write)}
	}
	return w
}

// apply lets the store handle a write: it replaces exactly the record before it.
func (x *explorer) apply(w *modelWorld, q *modelRequest) {
	if q.rec.seq != w.rec.seq+1 {
		q.refused = true
		return
	}
	if q.rec.fence != w.rec.fence {
		if q.rec.fence <= w.highest {
			x.t.Fatalf("fence %d after %d", q.rec.fence, w.highest)
		}
		if w.rec.node != 0 && w.rec.node != q.rec.node {
			x.takeover = true
		}
		w.highest = q.rec.fence
	}
	q.rec.exists = true
	w.rec = q.rec
}

// explore notes a world to be gone through, once.
func (x *explorer) explore(w modelWorld) {
	k := w.key()
	if _, ok := x.seen[k]; ok {
		return
	}
	x.seen[k] = struct{}{}
	x.open = append(x.open, w)
}

func (x *explorer) run() {
	x.seen = map[modelKey]struct{}{}
	x.explore(x.start())
	for len(x.open) > 0 && !x.broken {
		w := x.open[len(x.open)-1]
		x.open = x.open[:len(x.open)-1]
		x.check(w)
		v := w
		v.now++
		x.explore(v)
		for n := range w.p {
			x.process(w, n)
			x.requests(w, n)
		}
	}
}

// check is the promise: nobody acts while another one may.
func (x *explorer) check(w modelWorld) {
	if w.p[0].s.Held(w.now) && w.p[1].s.Held(w.now) {
		if x.variant == nil {
			x.t.Fatalf("two holders at %d:\n%+v", w.now, w)
		}
		x.broken = true
	}
}

// process explores what a process does by itself.
func (x *explorer) process(w modelWorld, n int) {
	p := &w.p[n]
	if p.s.Wake(w.now) <= w.now {
		x.explore(x.step(w, n, Event{}))
	}
	if p.s.Holding && !p.s.Held(w.now) {
		x.lapsed = true
	}
	if w.suspects < modelSuspects && p.s.Observed && !p.s.Holding && !p.s.Suspects {
		v := w
		v.suspects++
		x.explore(x.step(v, n, Event{Suspect: true}))
	}
	if w.restarts < x.restarts && p.s.Observed {
		v := w
		v.restarts++
		q := &v.p[n]
		q.life++
		ghost := q.write
		*q = modelProcess{s: Start(p.s.Node, modelName(int8(n+1), q.life), x.ttl, w.now), life: q.life}
		if ghost.phase == sent {
			q.ghost = ghost
		}
		x.explore(v)
	}
}

// requests explores what happens to the requests of a process.
func (x *explorer) requests(w modelWorld, n int) {
	p := w.p[n]
	if p.read.phase == answered {
		v := w
		v.p[n].read = modelRequest{}
		x.explore(x.step(v, n, Event{ReadDone: true, Saw: &Saw{Sent: p.read.sentAt, Exists: p.read.rec.exists, Lease: p.read.rec.lease()}}))
	}
	if p.ghost.phase == sent {
		v := w
		q := v.p[n].ghost
		v.p[n].ghost = modelRequest{}
		x.apply(&v, &q)
		x.explore(v)
	}
	end := func(v modelWorld, o Outcome) {
		v.p[n].write = modelRequest{}
		x.explore(x.step(v, n, Event{Wrote: &Wrote{Sent: p.write.sentAt, Outcome: o, Lease: p.write.rec.lease()}}))
	}
	switch p.write.phase {
	case sent:
		v := w
		x.apply(&v, &v.p[n].write)
		v.p[n].write.phase = answered
		x.explore(v)
		if w.losses < x.losses && p.ghost.phase == none { // given up; it may be applied yet
			v := w
			v.losses++
			v.p[n].ghost = p.write
			end(v, Failed)
		}
	case answered:
		if p.write.refused {
			end(w, Refused)
			return
		}
		end(w, Applied)
		if w.losses < x.losses {
			v := w
			v.losses++
			end(v, Failed)
		}
	}
}

func (x *explorer) exhaust(t *testing.T) {
	x.t, x.ttl = t, modelTTL
	x.run()
	t.Logf("%d worlds", len(x.seen))
	if !x.takeover {
		t.Error("no path had a take-over")
	}
	if !x.lapsed {
		t.Error("no path had a holder that lapsed")
	}
}

// Two contenders with pauses of any length: every world that can be reached.
func TestTwoContendersExhaustively(t *testing.T) { (&explorer{}).exhaust(t) }

// Variants that break one rule each: the model must catch them.
func TestModelCatchesBrokenVariants(t *testing.T) {
	for name, variant := range map[string]func(State, *State, Event, time.Duration){
		"holds from when the answer came": func(_ State, s *State, e Event, now time.Duration) {
			if e.Wrote != nil && e.Wrote.Outcome == Applied && s.mine() && !s.Resigned {
				s.Holding, s.Until = true, now+s.TTL
			}
		},
		"holds until somebody says otherwise": func(_ State, s *State, e Event, _ time.Duration) {
			if e.Wrote != nil && e.Wrote.Outcome == Applied && s.mine() {
				s.Holding, s.Until = true, never
			}
		},
		"watches for less than a TTL": func(before State, s *State, e Event, _ time.Duration) {
			if e.Saw != nil && s.FirstSeen != before.FirstSeen {
				s.FirstSeen--
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := &explorer{t: t, ttl: modelTTL, variant: variant}
			x.run()
			if !x.broken {
				t.Errorf("%d worlds and no two holders", len(x.seen))
			}
		})
	}
}

// Long random walks through the same model, with losses and restarts, and with a
// TTL that is long enough for the margin to be more than nothing.
func TestTwoContendersAtRandom(t *testing.T) {
	takeovers := 0
	rapid.Check(t, func(rt *rapid.T) {
		x := &explorer{t: t, ttl: time.Duration(rapid.IntRange(3, 20).Draw(rt, "ttl")), losses: 6, restarts: 4}
		x.seen = map[modelKey]struct{}{}
		w := x.start()
		for range rapid.IntRange(50, 600).Draw(rt, "steps") {
			x.open = x.open[:0]
			clear(x.seen)
			if rapid.IntRange(0, 2).Draw(rt, "tick") == 0 {
				w.now++
			}
			for n := range w.p {
				x.process(w, n)
				x.requests(w, n)
			}
			w.suspects = 0
			if len(x.open) > 0 {
				w = x.open[rapid.IntRange(0, len(x.open)-1).Draw(rt, "next")]
			}
			x.check(w)
		}
		if x.takeover {
			takeovers++
		}
	})
	if takeovers == 0 {
		t.Error("no walk had a take-over")
	}
}
