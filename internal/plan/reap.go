package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
)

const (
	// AbandonedAfter is how long the record of a deploy that is not terminal may
	// stand still, by the store's own clock, before its node is asked for.
	AbandonedAfter = 90 * time.Second
	// KeepTerminal is how long the record of a terminal deploy is kept.
	KeepTerminal = 7 * 24 * time.Hour
	// ClaimStaleAfter is how long a claim may stay pending, or held without its
	// application listing it.
	ClaimStaleAfter = 10 * time.Minute
	// TokensEvery is how often used token ids are swept.
	TokensEvery = 10 * time.Minute
)

// MayBeAbandoned is whether a deploy's record has stood still for so long that
// its accepting node has to be asked for. age is the store's Date less the
// record's Last-Modified.
func MayBeAbandoned(d scafo.Deploy, age time.Duration) bool {
	return !d.State.Terminal() && age >= AbandonedAfter
}

// Abandoned is the status of a deploy that nobody carries out any more: the poll
// that finds it answers this, and the reaper records the same.
func Abandoned(d scafo.Deploy) scafo.DeployStatus {
	s := d.DeployStatus
	s.State = scafo.DeployFailed
	s.Code = scafo.CodeDeployTimeout
	s.Detail = fmt.Sprintf("node %s, which accepted the deploy, does not answer, and the deploy has not moved for %d seconds",
		d.Node, int(AbandonedAfter/time.Second))
	s.Step = ""
	return s
}

// Expired is whether a terminal record is old enough to be deleted.
func Expired(d scafo.Deploy, age time.Duration) bool {
	return d.State.Terminal() && age >= KeepTerminal
}

// StaleClaim says why a claim should not stand as it does, and what it should be:
// it never came to be held, or nobody lists it. why is empty when it may stand.
func StaleClaim(c scafo.Claim, apps map[string]scafo.Application) (after scafo.Claim, why string) {
	after = c
	after.State, after.PendingWildcard = scafo.ClaimReleased, false
	if c.State == scafo.ClaimPending {
		return after, "it stayed pending"
	}
	if c.State != scafo.ClaimHeld {
		return c, ""
	}
	app, ok := apps[c.Application]
	if !ok || app.UID != c.UID {
		return after, "its application is gone"
	}
	for _, d := range app.Domains {
		if d.Host != c.Host {
			continue
		}
		if c.PendingWildcard {
			after = c
			after.PendingWildcard = false
			return after, "its claim of the subdomains stayed pending"
		}
		return c, ""
	}
	return after, "its application does not list it"
}

// StandingClaim is a claim that has been stale for too long: as it was seen, what
// it shall be, and why.
type StandingClaim struct {
	Seen, After scafo.Claim
	Why         string
}

// ClaimWatch finds the claims that have been stale for long enough, by the time
// of the one who watches: a claim that is written again begins anew.
type ClaimWatch struct {
	since map[string]watched // by host
}

type watched struct {
	write string
	at    time.Time
}

// Due are the claims that have been stale, as the very same write, for
// [ClaimStaleAfter], in the order of hosts.
func (w *ClaimWatch) Due(now time.Time, claims map[string]scafo.Claim, apps map[string]scafo.Application) []StandingClaim {
	next := make(map[string]watched)
	var due []StandingClaim
	for host, c := range claims {
		after, why := StaleClaim(c, apps)
		if why == "" {
			continue
		}
		seen, ok := w.since[host]
		if !ok || seen.write != c.Write {
			seen = watched{write: c.Write, at: now}
		}
		next[host] = seen
		if now.Sub(seen.at) >= ClaimStaleAfter {
			due = append(due, StandingClaim{Seen: c, After: after, Why: why})
		}
	}
	w.since = next
	slices.SortFunc(due, func(a, b StandingClaim) int { return strings.Compare(a.Seen.Host, b.Seen.Host) })
	return due
}
