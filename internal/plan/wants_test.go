package plan

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
)

// fleetWith is a fleet of nodes whose readiness and life are given as words:
// "ready", "starting", "gone", "draining".
func fleetWith(a scafo.Application, pl *scafo.Placement, nodes map[string]string) Fleet {
	f := Fleet{
		Applications: map[string]scafo.Application{a.Name: a},
		Placements:   map[string]scafo.Placement{},
		Ready:        func(n, uid string) bool { return uid == a.UID && nodes[n] == "ready" },
		Live:         func(n string) bool { s, ok := nodes[n]; return ok && s != "gone" },
		Draining:     func(n string) bool { return nodes[n] == "draining" },
	}
	if pl != nil {
		f.Placements[a.Name] = *pl
	}
	return f
}

func TestRoleOf(t *testing.T) {
	shop := app("shop")
	stamp := &scafo.Stamp{}
	for _, c := range []struct {
		name  string
		app   scafo.Application
		pl    *scafo.Placement
		uid   string
		nodes map[string]string
		want  Role
	}{
		{name: "placed", app: shop, pl: ptr(placed(shop, "a")), want: RolePlaced},
		{name: "nothing decided", app: shop, want: RolePending},
		{name: "decided for another life", app: shop, pl: &scafo.Placement{Application: "shop", UID: "old", Nodes: []string{"b"}}, want: RolePending},
		{name: "a former life", app: shop, pl: ptr(placed(shop, "a")), uid: "old", want: RoleStopped},
		{name: "moved, not ready there", app: shop, pl: ptr(placed(shop, "b")), nodes: map[string]string{"b": "starting"}, want: RoleAwaiting},
		{name: "moved, ready there", app: shop, pl: ptr(placed(shop, "b")), nodes: map[string]string{"b": "ready"}, want: RoleReplaced},
		{name: "moved to one that died", app: shop, pl: ptr(placed(shop, "b")), nodes: map[string]string{"b": "gone"}, want: RoleAwaiting},
		{name: "one of two new ones is ready", app: shop, pl: ptr(placed(shop, "b", "c")), nodes: map[string]string{"b": "ready", "c": "starting"}, want: RoleAwaiting},
		{name: "one of two is ready, the other died", app: shop, pl: ptr(placed(shop, "b", "c")), nodes: map[string]string{"b": "ready", "c": "gone"}, want: RoleReplaced},
		{name: "decided for nobody", app: shop, pl: ptr(placed(shop)), want: RoleStopped},
		{name: "decided for nobody while it drains", app: shop, pl: ptr(placed(shop)), nodes: map[string]string{"a": "draining"}, want: RoleAwaiting},
		{name: "blocked", app: app("shop", func(a *scafo.Application) { a.Blocked = stamp }), pl: ptr(placed(shop, "a")), want: RoleStopped},
		{name: "retired", app: app("shop", func(a *scafo.Application) { a.Retired = stamp }), pl: ptr(placed(shop, "a")), want: RoleStopped},
		{name: "deleting", app: app("shop", func(a *scafo.Application) { a.Deleting = &scafo.Deleting{} }), pl: ptr(placed(shop, "a")), want: RoleStopped},
		{name: "nothing deployed any more", app: app("shop", func(a *scafo.Application) { a.Deployment = "" }), pl: ptr(placed(shop, "a")), want: RoleStopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			uid := c.uid
			if uid == "" {
				uid = shop.UID
			}
			if got := fleetWith(c.app, c.pl, c.nodes).RoleOf("a", "shop", uid); got != c.want {
				t.Errorf("role %d, want %d", got, c.want)
			}
		})
	}
}

func TestWants(t *testing.T) {
	shop := app("shop", func(a *scafo.Application) { a.Deployment = "v7" })
	f := fleetWith(shop, ptr(placed(shop, "a")), nil)
	running := []scafo.ProcessStatus{
		{Application: "shop", UID: "former", State: scafo.ProcessReady},
		{Application: "zoo", UID: "u-zoo", State: scafo.ProcessReady},
	}
	got := f.Wants("a", running)
	want := []Want{
		{Application: "shop", UID: "former", Role: RoleStopped},
		{Application: "shop", UID: "u-shop", Version: "v7", Role: RolePlaced},
		{Application: "zoo", UID: "u-zoo", Role: RoleStopped},
	}
	if len(got) != len(want) {
		t.Fatalf("wants %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("want %d is %+v, not %+v", i, got[i], want[i])
		}
	}
}

// Make before break: as long as an application was served and some node still
// could serve it, the roles never stop the last process that is ready.
func TestTheLastReadyProcessIsNeverStopped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []string{"a", "b", "c"}
		shop := app("shop")
		states := map[string]string{}
		for _, id := range ids {
			states[id] = rapid.SampledFrom([]string{"ready", "starting", "gone"}).Draw(t, id)
		}
		nodes := rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 1, 3, func(s string) string { return s }).Draw(t, "placed")
		f := fleetWith(shop, ptr(placed(shop, nodes...)), states)
		before, after := 0, 0
		for _, id := range ids {
			if states[id] == "ready" {
				before++
				if f.RoleOf(id, "shop", shop.UID).Runs() {
					after++
				}
			}
		}
		if before > 0 && after == 0 {
			t.Fatalf("placed on %v, states %v: nobody serves it any more", nodes, states)
		}
	})
}

func TestVerdict(t *testing.T) {
	shop := app("shop", func(a *scafo.Application) { a.Deployment, a.DeploySeq = "v2", 5 })
	pl := func(seq int64, nodes ...string) *scafo.Placement {
		return &scafo.Placement{Application: "shop", UID: "u-shop", Nodes: nodes, DeploySeq: seq}
	}
	proc := func(state scafo.ProcessState, version string, change ...func(*scafo.ProcessStatus)) Truth {
		p := &scafo.ProcessStatus{UID: "u-shop", State: state, Deployment: version, Wanted: "v2"}
		for _, c := range change {
			c(p)
		}
		return Truth{Live: true, Heard: true, Process: p}
	}
	lone := pl(5, "a")
	lone.Reason = "node a is gone, and no other node qualifies"
	silent := func(d time.Duration, tr Truth) Truth { tr.Silent = d; return tr }
	refuses := func(p *scafo.ProcessStatus) { p.Refused = &scafo.Refusal{Version: "v2", Detail: "Error: boom"} }
	crashes := func(code int, signal string) func(*scafo.ProcessStatus) {
		return func(p *scafo.ProcessStatus) {
			p.LastExit, p.LastLines = &scafo.Exit{Code: code, Signal: signal}, []string{"Error: boom", "goodbye"}
		}
	}
	for _, c := range []struct {
		name   string
		app    scafo.Application
		pl     *scafo.Placement
		truths map[string]Truth
		want   Outcome
		node   string
		detail string
	}{
		{name: "no placement yet", app: shop, want: Waiting},
		{name: "a placement that has not seen it", app: shop, pl: pl(4, "a"), truths: map[string]Truth{"a": proc("ready", "v2")}, want: Waiting},
		{name: "served everywhere", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": proc("ready", "v2")}, want: Deployed},
		{name: "one lags", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": proc("ready", "v1")}, want: Waiting},
		{name: "one starts", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": proc("starting", "")}, want: Waiting},
		{name: "one has none yet", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": {Live: true, Heard: true}}, want: Waiting},
		{name: "one refuses", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": proc("ready", "v1", refuses)}, want: Failed, node: "b", detail: "Error: boom"},
		{name: "one refuses, others are silent", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": silent(time.Minute, proc("ready", "v1")), "b": proc("ready", "v1", refuses)}, want: Failed, node: "b", detail: "Error: boom"},
		{name: "it refused another version", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("ready", "v2", func(p *scafo.ProcessStatus) { p.Refused = &scafo.Refusal{Version: "v0"} })}, want: Deployed},
		{name: "it cannot start onto it", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("backoff", "", crashes(1, ""))}, want: Failed, node: "a", detail: "Error: boom"},
		{name: "it crashed on the version before", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("backoff", "", crashes(1, ""), func(p *scafo.ProcessStatus) { p.Wanted = "v1" })}, want: Waiting},
		{name: "what was started for the version before crashed", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("backoff", "", crashes(1, ""), func(p *scafo.ProcessStatus) { p.LastExit.Version = "v1" })}, want: Waiting},
		{name: "what was started for it crashed", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("backoff", "", crashes(1, ""), func(p *scafo.ProcessStatus) { p.LastExit.Version = "v2" })}, want: Failed, node: "a", detail: "Error: boom"},
		{name: "it lost its lease", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("backoff", "", crashes(3, ""))}, want: Waiting},
		{name: "it was killed", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": proc("backoff", "", crashes(0, "killed"))}, want: Waiting},
		{name: "silent for 9 s", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": {Live: true, Silent: 9 * time.Second}}, want: Waiting},
		{name: "silent for 10 s", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": {Live: true, Silent: 10 * time.Second}}, want: Deployed},
		{name: "silent since it started", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": silent(10*time.Second, proc("starting", ""))}, want: Deployed},
		{name: "all are silent: somebody must have verified it", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": {Live: true, Silent: time.Minute}}, want: Waiting},
		{name: "one is gone", app: shop, pl: pl(5, "a", "b"), truths: map[string]Truth{"a": proc("ready", "v2"), "b": {}}, want: Deployed},
		{name: "nothing can take it", app: shop, pl: pl(5), want: Deployed},
		{name: "all are gone, and another may take it over", app: shop, pl: pl(5, "a"), truths: map[string]Truth{"a": {}}, want: Waiting},
		{name: "all are gone, and no other qualifies", app: shop, pl: lone, truths: map[string]Truth{"a": {}}, want: Deployed},
		{name: "retired", app: app("shop", func(a *scafo.Application) { a.Retired = &scafo.Stamp{} }), want: Deployed},
		{name: "deleting", app: app("shop", func(a *scafo.Application) { a.Deleting = &scafo.Deleting{} }), want: Failed, detail: "the application was deleted"},
		{name: "another life", app: app("shop", func(a *scafo.Application) { a.UID = "next" }), want: Failed, detail: "the application was deleted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Settling{Application: c.app, UID: "u-shop", Seq: 5, Version: "v2", Placement: c.pl, Truths: c.truths}.Verdict()
			if v.Outcome != c.want || v.Node != c.node || v.Detail != c.detail {
				t.Errorf("verdict %+v", v)
			}
			if v.Outcome == Waiting && v.Step == "" {
				t.Error("it waits for nothing")
			}
		})
	}
}

func TestAnswered(t *testing.T) {
	for _, c := range []struct {
		p    scafo.ProcessStatus
		want bool
	}{
		{scafo.ProcessStatus{State: scafo.ProcessReady, Deployment: "v2"}, true},
		{scafo.ProcessStatus{State: scafo.ProcessReady, Deployment: "v1"}, false},
		{scafo.ProcessStatus{State: scafo.ProcessStarting, Deployment: "v2"}, false},
		{scafo.ProcessStatus{State: scafo.ProcessReady, Deployment: "v1", Refused: &scafo.Refusal{Version: "v2"}}, true},
		{scafo.ProcessStatus{State: scafo.ProcessBackoff, Wanted: "v2", LastExit: &scafo.Exit{Code: 1}}, true},
	} {
		if got := Answered(c.p, "v2"); got != c.want {
			t.Errorf("%+v: %v", c.p, got)
		}
	}
}

func TestAbandonedDeploys(t *testing.T) {
	d := scafo.Deploy{DeployStatus: scafo.DeployStatus{ID: "shop.0123456789abcdef", Application: "shop", State: scafo.DeployUploading, Step: "publishing"}, Node: "vps-a"}
	if MayBeAbandoned(d, 90*time.Second-1) || !MayBeAbandoned(d, 90*time.Second) {
		t.Error("the window is 90 seconds")
	}
	s := Abandoned(d)
	if s.State != scafo.DeployFailed || s.Code != scafo.CodeDeployTimeout || s.Step != "" || s.ID != d.ID {
		t.Errorf("status %+v", s)
	}
	if want := "node vps-a, which accepted the deploy, does not answer, and the deploy has not moved for 90 seconds"; s.Detail != want {
		t.Errorf("detail %q", s.Detail)
	}
	for _, state := range []scafo.DeployState{scafo.DeployDeployed, scafo.DeployFailed} {
		d.State = state
		if MayBeAbandoned(d, time.Hour) {
			t.Errorf("%s is terminal", state)
		}
		if Expired(d, 7*24*time.Hour-1) || !Expired(d, 7*24*time.Hour) {
			t.Error("terminal records are kept for seven days")
		}
	}
	d.State = scafo.DeployAccepted
	if Expired(d, 30*24*time.Hour) {
		t.Error("what is not terminal does not expire")
	}
}

func TestStaleClaims(t *testing.T) {
	shop := app("shop", func(a *scafo.Application) { a.Domains = []scafo.Domain{{Host: "shop.example"}} })
	apps := map[string]scafo.Application{"shop": shop}
	claim := func(host string, state scafo.ClaimState, change ...func(*scafo.Claim)) scafo.Claim {
		c := scafo.Claim{Header: scafo.Header{Write: "w1"}, Host: host, Application: "shop", UID: shop.UID, State: state}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	wild := func(c *scafo.Claim) { c.PendingWildcard = true }
	for _, c := range []struct {
		name  string
		claim scafo.Claim
		stale bool
		after scafo.Claim
	}{
		{"held and listed", claim("shop.example", scafo.ClaimHeld), false, scafo.Claim{}},
		{"released", claim("x.example", scafo.ClaimReleased), false, scafo.Claim{}},
		{"pending", claim("shop.example", scafo.ClaimPending), true, claim("shop.example", scafo.ClaimReleased)},
		{"held and unlisted", claim("x.example", scafo.ClaimHeld), true, claim("x.example", scafo.ClaimReleased)},
		{"of a former life", claim("shop.example", scafo.ClaimHeld, func(c *scafo.Claim) { c.UID = "old" }), true, claim("shop.example", scafo.ClaimReleased, func(c *scafo.Claim) { c.UID = "old" })},
		{"subdomains pending", claim("shop.example", scafo.ClaimHeld, wild), true, claim("shop.example", scafo.ClaimHeld)},
		{"subdomains unlisted", claim("shop.example", scafo.ClaimHeld, func(c *scafo.Claim) { c.Wildcard = true }), true, claim("shop.example", scafo.ClaimHeld)},
		{"doubted and listed", claim("shop.example", scafo.ClaimHeld, func(c *scafo.Claim) { c.Doubted = true }), true, claim("shop.example", scafo.ClaimHeld)},
		{"doubted and unlisted", claim("x.example", scafo.ClaimHeld, func(c *scafo.Claim) { c.Doubted = true }), true, claim("x.example", scafo.ClaimReleased)},
		{"subdomains pending, unlisted", claim("x.example", scafo.ClaimHeld, wild), true, claim("x.example", scafo.ClaimReleased)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w ClaimWatch
			claims := map[string]scafo.Claim{c.claim.Host: c.claim}
			if due := w.Due(at(0), claims, apps); len(due) != 0 {
				t.Errorf("due at once: %+v", due)
			}
			if due := w.Due(at(599), claims, apps); len(due) != 0 {
				t.Errorf("due before ten minutes: %+v", due)
			}
			due := w.Due(at(600), claims, apps)
			if (len(due) == 1) != c.stale {
				t.Fatalf("due %+v", due)
			}
			if c.stale && (due[0].After != c.after || due[0].Seen != c.claim || due[0].Why == "") {
				t.Errorf("due %+v, want after %+v", due[0], c.after)
			}
		})
	}
	t.Run("another write begins anew", func(t *testing.T) {
		var w ClaimWatch
		c := claim("shop.example", scafo.ClaimPending)
		w.Due(at(0), map[string]scafo.Claim{c.Host: c}, apps)
		c.Write = "w2"
		if due := w.Due(at(600), map[string]scafo.Claim{c.Host: c}, apps); len(due) != 0 {
			t.Errorf("due %+v", due)
		}
	})
}

func TestStaleListings(t *testing.T) {
	shop := app("shop", func(a *scafo.Application) { a.Domains = []scafo.Domain{{Host: "shop.example", Wildcard: true}} })
	claim := func(change func(*scafo.Claim)) scafo.Claim {
		c := scafo.Claim{Header: scafo.Header{Write: "w1"}, Host: "shop.example", Application: "shop", UID: shop.UID, State: scafo.ClaimHeld, Wildcard: true}
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		claim scafo.Claim
		want  ListingFault
	}{
		"held":              {claim(func(*scafo.Claim) {}), ListingStands},
		"about to be held":  {claim(func(c *scafo.Claim) { c.State, c.Wildcard = scafo.ClaimPending, false }), ListingStands},
		"about to be wider": {claim(func(c *scafo.Claim) { c.Wildcard, c.PendingWildcard = false, true }), ListingStands},
		"narrower":          {claim(func(c *scafo.Claim) { c.Wildcard = false }), ListingNarrows},
		"released":          {claim(func(c *scafo.Claim) { c.State = scafo.ClaimReleased }), ListingGoes},
		"of a former life":  {claim(func(c *scafo.Claim) { c.UID = "old" }), ListingGoes},
		"of another":        {claim(func(c *scafo.Claim) { c.Application = "blog" }), ListingGoes},
		"none":              {scafo.Claim{}, ListingGoes},
	} {
		if got := StaleListing(shop, shop.Domains[0], c.claim); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		var w ClaimWatch
		claims, apps := map[string]scafo.Claim{"shop.example": c.claim}, map[string]scafo.Application{"shop": shop}
		for _, s := range []float64{0, 599} {
			if due := w.DueListings(at(s), claims, apps); len(due) != 0 {
				t.Errorf("%s: due after %v s: %v", name, s, due)
			}
		}
		due := w.DueListings(at(600), claims, apps)
		if (len(due) == 1) != (c.want != ListingStands) || len(due) == 1 && due[0] != (StandingListing{"shop", shop.UID, "shop.example"}) {
			t.Errorf("%s: due %v", name, due)
		}
		gone := shop
		gone.Deleting = &scafo.Deleting{}
		if due := w.DueListings(at(1800), claims, map[string]scafo.Application{"shop": gone}); len(due) != 0 {
			t.Errorf("%s: a deletion that has begun is left alone: %v", name, due)
		}
	}
}
