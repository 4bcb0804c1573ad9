// Package check goes through a whole bucket and says what is wrong in it: the
// invariants of every document, and those between documents. Scenario tests end
// with it.
package check

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// Bucket fails the test for everything that is wrong in a bucket.
func Bucket(t testing.TB, b bucket.Bucket) {
	t.Helper()
	problems, err := All(context.Background(), b)
	if err != nil {
		t.Errorf("the bucket cannot be checked: %v", err)
	}
	for _, p := range problems {
		t.Errorf("in the bucket: %s", p)
	}
}

// All lists everything that is wrong in a bucket.
func All(ctx context.Context, b bucket.Bucket) ([]string, error) {
	c := &checker{
		ctx: ctx, r: registry.New(b, registry.Options{}), nonces: map[string]string{},
		ids: docs[scafo.IDClaim]{}, operators: docs[scafo.Operator]{}, nodes: docs[scafo.Node]{},
		heartbeats: docs[scafo.Heartbeat]{}, applications: docs[scafo.Application]{}, trust: docs[scafo.TrustPolicy]{},
		deployments: docs[scafo.Deployment]{}, deploys: docs[scafo.Deploy]{}, placements: docs[scafo.Placement]{},
		claims: docs[scafo.Claim]{}, named: map[string]bool{}, runtimes: map[string]string{},
	}
	err := bucket.Walk(ctx, b, "", func(i bucket.Info) error { return c.object(i.Key) })
	if err != nil {
		return nil, err
	}
	c.keys()
	c.fleetWide()
	c.perApplication()
	c.perDeploy()
	c.formerLives()
	return c.problems, nil
}

type docs[T any] map[string]registry.Doc[T]

type checker struct {
	ctx      context.Context
	r        *registry.Registry
	problems []string
	nonces   map[string]string // the key that has it, by nonce
	named    map[string]bool   // the names that have, or had, an application
	runtimes map[string]string // a key of each life, by <name>/<uid>

	fleet    registry.Doc[scafo.Fleet]
	index    registry.Doc[scafo.OperatorIndex]
	lease    registry.Doc[scafo.Lease]
	revision registry.Doc[scafo.Revision]
	freeze   registry.Doc[scafo.Freeze]

	ids          docs[scafo.IDClaim]
	operators    docs[scafo.Operator]
	nodes        docs[scafo.Node]
	heartbeats   docs[scafo.Heartbeat]
	applications docs[scafo.Application]
	trust        docs[scafo.TrustPolicy]
	deployments  docs[scafo.Deployment]
	deploys      docs[scafo.Deploy]
	placements   docs[scafo.Placement]
	claims       docs[scafo.Claim]
}

func (c *checker) say(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// load reads a document strictly and checks its nonce.
func load[T any, P registry.Record[T]](c *checker, key string) (registry.Doc[T], error) {
	d, err := registry.Load[T, P](c.ctx, c.r, key)
	if err != nil {
		if scafo.CodeOf(err) == scafo.CodeStoreUnavailable {
			return d, err
		}
		c.say("%v", err)
		return d, nil
	}
	if !d.Exists {
		return d, nil
	}
	nonce := P(&d.Value).GetHeader().Write
	if nonce == "" {
		c.say("%s has no write nonce", key)
	} else if other, twice := c.nonces[nonce]; twice {
		c.say("%s and %s have the same write nonce", key, other)
	}
	c.nonces[nonce] = key
	return d, nil
}

func into[T any, P registry.Record[T]](c *checker, key string, all docs[T]) error {
	d, err := load[T, P](c, key)
	if d.Exists {
		all[key] = d
	}
	return err
}

// local is the first time in a document that is not in UTC.
func local(name string, v any) string {
	switch v := v.(type) {
	case map[string]any:
		for n, e := range v {
			if s := local(n, e); s != "" {
				return s
			}
		}
	case []any:
		for _, e := range v {
			if s := local(name, e); s != "" {
				return s
			}
		}
	case string:
		if name != "at" && !strings.HasSuffix(name, "At") {
			break
		}
		if at, err := time.Parse(time.RFC3339, v); err == nil && !strings.HasSuffix(v, "Z") {
			return fmt.Sprintf("%s %s", name, at)
		}
	}
	return ""
}

// times checks that the times of a document are in UTC.
func (c *checker) times(key string) error {
	if !strings.HasPrefix(key, registry.Prefix) || strings.HasPrefix(key, registry.StoragePrefix) {
		return nil
	}
	o, err := c.r.Bucket().Get(c.ctx, key)
	if err != nil {
		return err
	}
	var v any
	if json.Unmarshal(o.Body, &v) == nil {
		if s := local("", v); s != "" {
			c.say("%s: %s is not in UTC", key, s)
		}
	}
	return nil
}

func (c *checker) object(key string) (err error) {
	if err := c.times(key); err != nil {
		return err
	}
	for _, segment := range strings.Split(key, "/") {
		if segment == "" || segment == "." || segment == ".." || len(segment) > registry.MaxSegment {
			c.say("%s has a segment that some store cannot hold", key)
		}
	}
	switch key {
	case registry.FleetKey:
		c.fleet, err = load[scafo.Fleet](c, key)
		return err
	case registry.OperatorIndexKey:
		c.index, err = load[scafo.OperatorIndex](c, key)
		return err
	case registry.CoordinatorKey:
		c.lease, err = load[scafo.Lease](c, key)
		return err
	case registry.RevisionKey:
		c.revision, err = load[scafo.Revision](c, key)
		return err
	case registry.FreezeKey:
		c.freeze, err = load[scafo.Freeze](c, key)
		return err
	}
	for _, p := range []struct {
		prefix string
		load   func() error
	}{
		{registry.IDPrefix, func() error { return into(c, key, c.ids) }},
		{registry.OperatorPrefix, func() error { return into(c, key, c.operators) }},
		{registry.NodePrefix, func() error { return into(c, key, c.nodes) }},
		{registry.HeartbeatPrefix, func() error { return into(c, key, c.heartbeats) }},
		{registry.ApplicationPrefix, func() error { return c.noteLife(key) }},
		{registry.TrustPrefix, func() error { return into(c, key, c.trust) }},
		{registry.DeploymentPrefix, func() error { return into(c, key, c.deployments) }},
		{registry.DeployPrefix, func() error { return into(c, key, c.deploys) }},
		{registry.PlacementPrefix, func() error { return into(c, key, c.placements) }},
		{registry.DomainPrefix, func() error { return into(c, key, c.claims) }},
		{registry.TokenPrefix, func() error { return c.token(key) }},
		{registry.StoragePrefix, func() error { return nil }}, // the ingress's own bytes
		{registry.ProbePrefix, func() error { return nil }},   // of a prover that was killed: another one sweeps it
		{registry.RuntimesPrefix, func() error { return c.runtime(key) }},
	} {
		if strings.HasPrefix(key, p.prefix) {
			return p.load()
		}
	}
	c.say("%s belongs to nothing", key)
	return nil
}

// token checks _scafo/tokens/<minute>/<64 hex>.
func (c *checker) token(key string) error {
	minute, hash, ok := strings.Cut(strings.TrimPrefix(key, registry.TokenPrefix), "/")
	if _, err := time.Parse("20060102T1504", minute); err != nil || !ok || len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" {
		c.say("%s is no key of a used token", key)
	}
	return nil
}

// runtime checks fleets/<name>/<uid>/….
func (c *checker) runtime(key string) error {
	parts := strings.SplitN(strings.TrimPrefix(key, registry.RuntimesPrefix), "/", 3)
	if len(parts) < 3 || !scafo.ValidName(parts[0]) || !hexID(parts[1], 16) {
		c.say("%s is in no life of an application", key)
		return nil
	}
	c.runtimes[parts[0]+"/"+parts[1]] = key
	return nil
}

func hexID(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }

// at says that a document stands under another key than its own.
func at[T any](c *checker, all docs[T], key func(T) string) {
	for k, d := range all {
		if want := key(d.Value); k != want {
			c.say("%s belongs at %s", k, want)
		}
	}
}

func (c *checker) keys() {
	at(c, c.ids, func(v scafo.IDClaim) string { return registry.IDKey(v.ID) })
	at(c, c.operators, func(v scafo.Operator) string { return registry.OperatorKey(v.ID) })
	at(c, c.nodes, func(v scafo.Node) string { return registry.NodeKey(v.ID) })
	at(c, c.heartbeats, func(v scafo.Heartbeat) string { return registry.HeartbeatKey(v.Node) })
	at(c, c.applications, func(v scafo.Application) string { return registry.ApplicationKey(v.Name) })
	at(c, c.trust, func(v scafo.TrustPolicy) string { return registry.TrustKey(v.Application) })
	at(c, c.deployments, func(v scafo.Deployment) string {
		return registry.DeploymentKey(v.Application, v.UID, v.Version)
	})
	at(c, c.placements, func(v scafo.Placement) string { return registry.PlacementKey(v.Application, v.UID) })
	at(c, c.claims, func(v scafo.Claim) string { return registry.ClaimKey(v.Host) })
	for k, d := range c.deploys {
		id, ok := scafo.ParseDeployID(d.Value.ID)
		if !ok || registry.DeployKey(id) != k || id.Application != d.Value.Application {
			c.say("%s is of deploy %q of %q", k, d.Value.ID, d.Value.Application)
		}
	}
}

// owned checks that an id was claimed for a key of a kind.
func (c *checker) owned(key, id, kind string, public scafo.PublicKey) {
	claim, ok := c.ids[registry.IDKey(id)]
	switch {
	case !scafo.ValidName(id):
		c.say("%s has id %q", key, id)
	case !ok:
		c.say("%s: its id was never claimed", key)
	case claim.Value.Kind != kind || claim.Value.PublicKey != public:
		c.say("%s: its id is claimed by another %s", key, claim.Value.Kind)
	}
}

func (c *checker) fleetWide() {
	for k, d := range c.operators {
		c.owned(k, d.Value.ID, "operator", d.Value.PublicKey)
		if _, err := scafo.ParseScope(d.Value.Applications); err != nil {
			c.say("%s: %v", k, err)
		}
		if d.Value.Role != scafo.RoleAdmin && d.Value.Role != scafo.RoleOperator {
			c.say("%s has role %q", k, d.Value.Role)
		}
	}
	for k, d := range c.nodes {
		c.owned(k, d.Value.ID, "node", d.Value.PublicKey)
	}
	for k, d := range c.heartbeats {
		if _, ok := c.nodes[registry.NodeKey(d.Value.Node)]; !ok {
			c.say("%s is of a node that has no record", k)
		}
	}
	admins := 0
	for id, role := range c.index.Value.Operators {
		op, ok := c.operators[registry.OperatorKey(id)]
		switch {
		case !ok:
			c.say("the index has operator %s, who has no record", id)
		case op.Value.Role != role:
			c.say("the index has operator %s as %s, the record says %s", id, role, op.Value.Role)
		case role == scafo.RoleAdmin:
			admins++
		}
	}
	if c.index.Exists && admins == 0 {
		c.say("no admin is left")
	}
	if c.fleet.Exists && (c.fleet.Value.ID == "" || c.fleet.Value.Founder.Role != scafo.RoleAdmin) {
		c.say("the fleet has id %q and founder %+v", c.fleet.Value.ID, c.fleet.Value.Founder)
	}
	if l := c.lease.Value; c.lease.Exists && (l.Fence < 1 || l.Seq < l.Fence || (l.Node == "") != (l.Process == "")) {
		c.say("the lease is %+v", l)
	}
	c.checkRevision()
}

func (c *checker) checkRevision() {
	rev := c.revision.Value
	if len(rev.Changed) > scafo.MaxChanges {
		c.say("the revision has %d changes", len(rev.Changed))
	}
	if rev.Since > rev.Counter {
		c.say("the revision is complete since %d, and at %d", rev.Since, rev.Counter)
	}
	var last int64
	seen := map[string]bool{}
	for _, ch := range rev.Changed {
		if ch.Counter < last || ch.Counter > rev.Counter || ch.Counter < rev.Since {
			c.say("the revision at %d, since %d, has change %d of %s after %d", rev.Counter, rev.Since, ch.Counter, ch.Key, last)
		}
		if seen[ch.Key] {
			c.say("the revision names %s twice", ch.Key)
		}
		seen[ch.Key], last = true, ch.Counter
		for _, never := range []string{registry.TokenPrefix, registry.StoragePrefix, registry.CoordinatorKey, registry.RevisionKey} {
			if strings.HasPrefix(ch.Key, never) {
				c.say("the revision announces %s", ch.Key)
			}
		}
	}
}

func (c *checker) perApplication() {
	for k, d := range c.applications {
		app := d.Value
		if !scafo.ValidName(app.Name) || !hexID(app.UID, 16) {
			c.say("%s has name %q and uid %q", k, app.Name, app.UID)
		}
		if !app.Replicas.All && app.Replicas.Count < 1 {
			c.say("%s wants %v replicas", k, app.Replicas)
		}
		if app.DeploymentSeq > app.DeploySeq || app.Publishing != nil && app.Publishing.Seq > app.DeploySeq {
			c.say("%s is at deploy %d, with deployment of %d and publishing %+v", k, app.DeploySeq, app.DeploymentSeq, app.Publishing)
		}
		if app.Deployment != "" && app.Deleting == nil {
			if _, ok := c.deployments[registry.DeploymentKey(app.Name, app.UID, app.Deployment)]; !ok {
				c.say("%s names deployment %s, which has no record", k, app.Deployment)
			}
		}
		c.domains(k, app)
	}
	c.everyClaim()
	for k, d := range c.placements {
		p := d.Value
		if !hexID(p.UID, 16) || p.Nodes == nil {
			c.say("%s has uid %q and nodes %v", k, p.UID, p.Nodes)
		}
		if c.lease.Exists && p.Fence > c.lease.Value.Fence {
			c.say("%s has fence %d, the lease %d", k, p.Fence, c.lease.Value.Fence)
		}
		for i, n := range p.Nodes {
			if _, ok := c.nodes[registry.NodeKey(n)]; !ok || slices.Contains(p.Nodes[:i], n) {
				c.say("%s names node %s, which has no record or stands there twice", k, n)
			}
		}
	}
}

func (c *checker) perDeploy() {
	type order struct {
		uid string
		seq int64
	}
	seqs := map[order]string{}
	for k, d := range c.deploys {
		dep := d.Value
		switch dep.State {
		case scafo.DeployAccepted, scafo.DeployUploading:
		case scafo.DeployDeployed:
			if dep.Deployment == "" || dep.Code != "" {
				c.say("%s is deployed as %q with code %q", k, dep.Deployment, dep.Code)
			}
		case scafo.DeployFailed:
			if !slices.Contains(scafo.Codes(), dep.Code) {
				c.say("%s failed with code %q", k, dep.Code)
			}
		default:
			c.say("%s has state %q", k, dep.State)
		}
		o := order{dep.UID, dep.Seq}
		if other, twice := seqs[o]; twice {
			c.say("%s and %s are both deploy %d", k, other, dep.Seq)
		}
		seqs[o] = k
		app, ok := c.applications[registry.ApplicationKey(dep.Application)]
		if ok && app.Value.UID == dep.UID && dep.Seq > app.Value.DeploySeq {
			c.say("%s is deploy %d, the application is at %d", k, dep.Seq, app.Value.DeploySeq)
		}
	}
	for k, d := range c.deployments {
		dep := d.Value
		if !registry.ValidVersion(dep.Version) || !hexID(dep.UID, 16) {
			c.say("%s has version %q and uid %q", k, dep.Version, dep.UID)
		}
	}
}
