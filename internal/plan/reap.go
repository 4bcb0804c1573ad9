package plan

import (
	"fmt"
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

// StaleClaim says why a claim should not stand as it does: it never came to be
// held, or nobody lists it. Empty when it may.
func StaleClaim(c scafo.Claim, apps map[string]scafo.Application) string {
	if c.State == scafo.ClaimPending {
		return "it stayed pending"
	}
	if c.State != scafo.ClaimHeld {
		return ""
	}
	app, ok := apps[c.Application]
	if !ok || app.UID != c.UID {
		return "its application is gone"
	}
	for _, d := range app.Domains {
		if d.Host == c.Host {
			if c.PendingWildcard {
				return "its claim of the subdomains stayed pending"
			}
			return ""
		}
	}
	return "its application does not list it"
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
// [ClaimStaleAfter].
func (w *ClaimWatch) Due(now time.Time, claims map[string]scafo.Claim, apps map[string]scafo.Application) []scafo.Claim {
	next := make(map[string]watched)
	var due []scafo.Claim
	for host, c := range claims {
		if StaleClaim(c, apps) == "" {
			continue
		}
		seen, ok := w.since[host]
		if !ok || seen.write != c.Write {
			seen = watched{write: c.Write, at: now}
		}
		next[host] = seen
		if now.Sub(seen.at) >= ClaimStaleAfter {
			due = append(due, c)
		}
	}
	w.since = next
	return due
}
