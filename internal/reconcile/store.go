package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/registry"
)

// Store is the registry as the loop uses it.
type Store interface {
	// Refresh reads what changed, and what was hinted at in any case.
	Refresh(ctx context.Context) (changed bool, err error)
	Snapshot() *registry.Snapshot
	Hint(keys ...string)
	// Relist makes the next Refresh list everything.
	Relist()
	Announce(ctx context.Context, keys ...string) error
	// OnChange has f told of what other parts of this process wrote, as soon as
	// they did.
	OnChange(f func(keys ...string))
	// WriteHeartbeat writes it without announcing it.
	WriteHeartbeat(ctx context.Context, h scafo.Heartbeat) error
	// PutPlacement writes a decision without announcing it, if held still says so
	// when it is about to. It is registry.ErrFenced where that does not, or where a
	// decision of a higher fence stands.
	PutPlacement(ctx context.Context, p scafo.Placement, held func() bool) (scafo.Placement, error)

	// Deploys lists the records of all deploys.
	Deploys(ctx context.Context) ([]bucket.Info, error)
	Deploy(ctx context.Context, id scafo.DeployID) (registry.Doc[scafo.Deploy], error)
	// FailDeploy records the status, unless the deploy has ended.
	FailDeploy(ctx context.Context, id scafo.DeployID, s scafo.DeployStatus) error
	DeleteDeploy(ctx context.Context, id scafo.DeployID) error
	// SettleClaim takes back what nobody completed or lists of a claim that is still
	// the very write that was seen; SettleListing, what an application lists and does
	// not hold.
	SettleClaim(ctx context.Context, host, write string) (after scafo.Claim, changed bool, err error)
	SettleListing(ctx context.Context, name, uid, host string) (changed bool, err error)
	SweepTokens(ctx context.Context) error
}

// RegistryStore is the registry and a follower of it as a [Store].
func RegistryStore(r *registry.Registry, f *registry.Follower) Store {
	return &store{Follower: f, r: r}
}

type store struct {
	*registry.Follower
	r *registry.Registry
}

// ownKey marks the announcements of the loop itself.
type ownKey struct{}

func (s *store) Announce(ctx context.Context, keys ...string) error {
	return s.r.Announce(context.WithValue(ctx, ownKey{}, true), keys...)
}

func (s *store) OnChange(f func(keys ...string)) {
	s.r.OnChange(func(ctx context.Context, keys []string) {
		if ctx.Value(ownKey{}) == nil {
			f(keys...)
		}
	})
}

func (s *store) WriteHeartbeat(ctx context.Context, h scafo.Heartbeat) error {
	return s.r.WriteHeartbeat(ctx, h, false)
}

func (s *store) PutPlacement(ctx context.Context, p scafo.Placement, held func() bool) (scafo.Placement, error) {
	written, _, err := s.r.DecidePlacement(ctx, p, held)
	return written, err
}

func (s *store) Deploys(ctx context.Context) ([]bucket.Info, error) {
	var out []bucket.Info
	err := bucket.Walk(ctx, s.r.Bucket(), registry.DeployPrefix, func(i bucket.Info) error {
		out = append(out, i)
		return nil
	})
	if err != nil {
		return nil, scafo.Wrap(err, scafo.CodeStoreUnavailable, "the deploys could not be listed")
	}
	return out, nil
}

func (s *store) Deploy(ctx context.Context, id scafo.DeployID) (registry.Doc[scafo.Deploy], error) {
	return s.r.Deploy(ctx, id)
}

func (s *store) FailDeploy(ctx context.Context, id scafo.DeployID, st scafo.DeployStatus) error {
	now := s.r.Now()
	_, err := s.r.UpdateDeploy(ctx, id, func(d *scafo.Deploy) error {
		d.DeployStatus = st
		d.MovedAt, d.FinishedAt = now, &now
		return nil
	})
	if errors.Is(err, registry.ErrTerminal) {
		return nil
	}
	return err
}

func (s *store) DeleteDeploy(ctx context.Context, id scafo.DeployID) error {
	return s.r.DeleteDeploy(ctx, id)
}

func (s *store) SettleClaim(ctx context.Context, host, write string) (after scafo.Claim, changed bool, err error) {
	return s.r.SettleClaim(ctx, host, write)
}

func (s *store) SettleListing(ctx context.Context, name, uid, host string) (changed bool, err error) {
	return s.r.SettleListing(ctx, name, uid, host)
}

func (s *store) SweepTokens(ctx context.Context) error { return s.r.SweepTokens(ctx, time.Now()) }

// deployID is the deploy that a key of a listing is the record of.
func deployID(key string) (scafo.DeployID, bool) {
	rest, ok := strings.CutPrefix(key, registry.DeployPrefix)
	if !ok {
		return scafo.DeployID{}, false
	}
	parts := strings.Split(strings.TrimSuffix(rest, ".json"), "/")
	if len(parts) != 2 {
		return scafo.DeployID{}, false
	}
	return scafo.ParseDeployID(parts[0] + "." + parts[1])
}

// hintable are the keys that a hint may name: the followed documents. Anything
// else would be read for nothing.
func hintable(keys []string) []string {
	prefixes := []string{
		registry.NodePrefix, registry.HeartbeatPrefix, registry.ApplicationPrefix,
		registry.PlacementPrefix, registry.DomainPrefix, registry.FreezeKey, registry.FleetKey,
		registry.OperatorPrefix,
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(k, p) })
	})
}
