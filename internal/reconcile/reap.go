package reconcile

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/plan"
)

const (
	// reapTick is how often the coordinator looks, in memory, for what there is to
	// clean up; reapList how often it lists the deploys.
	reapTick = 10 * time.Second
	reapList = time.Hour
	// slotAfter is how long a deploy may hold its application's slot before its
	// record is looked at.
	slotAfter = 2 * time.Minute
)

// reaping is what the coordinator remembers between its rounds.
type reaping struct {
	l      *Loop
	claims plan.ClaimWatch
	fence  int64
	known  map[string]string         // ETag of each listed record, by key
	open   map[scafo.DeployID]string // deploys that have not ended, with their node
	slots  map[string]slot           // by application
	list   time.Time                 // when to list next
	tokens time.Time                 // when to sweep tokens next
}

type slot struct {
	deploy string
	since  time.Time
}

// reaper cleans up while this node coordinates.
func (l *Loop) reaper(ctx context.Context) {
	ctx = meter.With(ctx, "reap")
	r := &reaping{l: l}
	tick := time.NewTicker(reapTick)
	defer tick.Stop()
	for {
		listNow := false
		select {
		case <-ctx.Done():
			return
		case <-l.reap:
			listNow = true
			select {
			case <-tick.C: // one round does both
			default:
			}
		case <-tick.C:
			select {
			case <-l.reap:
				listNow = true
			default:
			}
		}
		l.mu.Lock()
		v := l.view
		l.mu.Unlock()
		fence, held := l.c.Lease.Held()
		if !held || v == nil {
			r.fence = 0
			continue
		}
		if r.fence != fence {
			now := time.Now()
			*r = reaping{
				l: l, fence: fence, known: map[string]string{}, open: map[scafo.DeployID]string{},
				slots: map[string]slot{}, list: now, tokens: now.Add(plan.TokensEvery),
			}
		}
		if listNow {
			r.list = time.Now()
		}
		r.round(ctx, v)
	}
}

// round does what is due. A failure is logged, and the next round tries again.
func (r *reaping) round(ctx context.Context, v *view) {
	now := time.Now()
	r.resumeDeletions(v)
	step := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			r.l.log.Warn("cleaning up failed", "event", "reap.failed", "step", what, "err", err)
		}
	}
	step("claims", r.settleClaims(ctx, v, now))
	if !now.Before(r.list) {
		err := r.listDeploys(ctx, now)
		step("listing deploys", err)
		r.list = now.Add(reapList)
		if err != nil {
			r.list = now.Add(reapTick)
		}
	}
	for id, d := range v.snap.Deploys {
		if parsed, ok := scafo.ParseDeployID(id); ok {
			r.open[parsed] = d.Node
		}
	}
	open := slices.SortedFunc(maps.Keys(r.open), func(a, b scafo.DeployID) int { return strings.Compare(a.String(), b.String()) })
	for _, id := range open {
		if !r.held() {
			return
		}
		step("deploys", r.judge(ctx, id, r.open[id]))
	}
	step("slots", r.freeSlots(ctx, v, now))
	if !now.Before(r.tokens) && r.held() {
		r.tokens = now.Add(plan.TokensEvery)
		step("tokens", r.l.c.Store.SweepTokens(ctx))
	}
}

func (r *reaping) held() bool {
	fence, ok := r.l.c.Lease.Held()
	return ok && fence == r.fence
}

// settleClaims takes back what stayed half-done of claims and of releases.
func (r *reaping) settleClaims(ctx context.Context, v *view, now time.Time) error {
	for _, c := range r.claims.Due(now, v.snap.Claims, v.snap.Applications) {
		if !r.held() {
			return nil
		}
		after, changed, err := r.l.c.Store.SettleClaim(ctx, c.Seen.Host, c.Seen.Write)
		if changed {
			r.l.log.Info("a claim is settled", "event", "claim.reaped", "application", c.Seen.Application, "host", c.Seen.Host, "reason", c.Why, "state", after.State)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range r.claims.DueListings(now, v.snap.Claims, v.snap.Applications) {
		if !r.held() {
			return nil
		}
		changed, err := r.l.c.Store.SettleListing(ctx, d.Application, d.UID, d.Host)
		if changed {
			r.l.log.Info("a host that its application does not hold leaves its list", "event", "domain.reaped", "application", d.Application, "host", d.Host)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listDeploys looks at every record that is new or changed since the last
// listing, and deletes those that ended long ago.
func (r *reaping) listDeploys(ctx context.Context, now time.Time) error {
	infos, err := r.l.c.Store.Deploys(ctx)
	if err != nil {
		return err
	}
	known := make(map[string]string, len(infos))
	for _, i := range infos {
		id, ok := deployID(i.Key)
		if !ok {
			continue
		}
		known[i.Key] = i.ETag
		old := now.Sub(i.Modified) >= plan.KeepTerminal
		if r.known[i.Key] == i.ETag && !old {
			continue
		}
		d, err := r.l.c.Store.Deploy(ctx, id)
		if scafo.CodeOf(err) == scafo.CodeNotFound || scafo.CodeOf(err) == scafo.CodeInternal {
			continue // gone in the meantime, or none that this release may touch
		}
		if err != nil {
			return err
		}
		age, ok := d.Age()
		if !ok {
			age = now.Sub(i.Modified)
		}
		switch {
		case !d.Value.State.Terminal():
			r.open[id] = d.Value.Node
		case plan.Expired(d.Value, age) && r.held():
			if err := r.l.c.Store.DeleteDeploy(ctx, id); err != nil {
				return err
			}
			delete(known, i.Key)
		}
	}
	r.known = known
	return nil
}

// judge looks at a deploy that had not ended when it was last read. While its
// node lives nothing is asked of the bucket.
func (r *reaping) judge(ctx context.Context, id scafo.DeployID, node string) error {
	r.l.mu.Lock()
	live := r.l.live.Live(node)
	r.l.mu.Unlock()
	if live {
		return nil
	}
	d, err := r.l.c.Store.Deploy(ctx, id)
	if scafo.CodeOf(err) == scafo.CodeNotFound || err == nil && d.Value.State.Terminal() {
		delete(r.open, id)
		return nil
	}
	if err != nil {
		return err
	}
	age, ok := d.Age()
	if !ok || !plan.MayBeAbandoned(d.Value, age) || r.l.NodeAnswers(ctx, node) || !r.held() {
		return nil
	}
	st := plan.Abandoned(d.Value)
	if err := r.l.c.Store.FailDeploy(ctx, id, st); err != nil {
		return err
	}
	delete(r.open, id)
	r.l.log.Info("a deploy is given up", "event", "deploy.reaped", "application", id.Application, "deploy", id.String(), "node", node)
	gone := d.Value
	gone.DeployStatus = st
	return r.follow(ctx, gone)
}

// freeSlots looks at the deploys that hold their application's slot for long: one
// that ended without giving it back loses it.
func (r *reaping) freeSlots(ctx context.Context, v *view, now time.Time) error {
	slots := map[string]slot{}
	for _, name := range slices.Sorted(maps.Keys(v.snap.Applications)) {
		app := v.snap.Applications[name]
		if app.Publishing == nil {
			continue
		}
		s, ok := r.slots[name]
		if !ok || s.deploy != app.Publishing.Deploy {
			s = slot{deploy: app.Publishing.Deploy, since: now}
		}
		slots[name] = s
		if id, ok := scafo.ParseDeployID(s.deploy); ok && now.Sub(s.since) >= slotAfter && r.held() {
			s.since = now
			slots[name] = s
			d, err := r.l.c.Store.Deploy(ctx, id)
			switch {
			case scafo.CodeOf(err) == scafo.CodeNotFound:
				// It goes with its application; else the next deploy takes the slot.
			case err != nil:
				return err
			case !d.Value.State.Terminal():
				r.open[id] = d.Value.Node
			default:
				if err := r.follow(ctx, d.Value); err != nil {
					return err
				}
			}
		}
	}
	r.slots = slots
	return nil
}

func (r *reaping) follow(ctx context.Context, d scafo.Deploy) error {
	if r.l.c.Abandoned == nil {
		return nil
	}
	return r.l.c.Abandoned(ctx, d)
}
