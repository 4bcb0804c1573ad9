package plan

import (
	"cmp"
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
	gone := c
	gone.State, gone.PendingWildcard, gone.Doubted = scafo.ClaimReleased, false, false
	switch c.State {
	case scafo.ClaimPending:
		return gone, "it stayed pending"
	case scafo.ClaimHeld:
	default:
		return c, ""
	}
	app, ok := apps[c.Application]
	if !ok || app.UID != c.UID {
		return gone, "its application is gone"
	}
	i := slices.IndexFunc(app.Domains, func(d scafo.Domain) bool { return d.Host == c.Host })
	if i < 0 {
		return gone, "its application does not list it"
	}
	after = c
	after.PendingWildcard, after.Doubted = false, false
	switch {
	case c.PendingWildcard:
		return after, "its claim of the subdomains stayed pending"
	case c.Wildcard && !app.Domains[i].Wildcard:
		after.Wildcard = false
		return after, "its application does not list its subdomains"
	case c.Doubted:
		return after, "it stayed in doubt"
	}
	return c, ""
}

// ListingFault is what is wrong with an entry in an application's list of hosts.
type ListingFault int

// The faults of an entry.
const (
	ListingStands  ListingFault = iota
	ListingGoes                 // nobody claims the host for this life of the application
	ListingNarrows              // the claim does not cover the subdomains
)

// StaleListing says what is wrong with an entry of an application, by the claim of
// its host, a zero one where there is none. What is about to be claimed is not wrong.
func StaleListing(app scafo.Application, d scafo.Domain, c scafo.Claim) ListingFault {
	switch {
	case !c.Active() || !c.Of(app.Name, app.UID):
		return ListingGoes
	case c.State == scafo.ClaimHeld && d.Wildcard && !c.Covers():
		return ListingNarrows
	}
	return ListingStands
}

// StandingClaim is a claim that has been stale for too long: as it was seen, what
// it shall be, and why.
type StandingClaim struct {
	Seen, After scafo.Claim
	Why         string
}

// StandingListing is an entry of an application's list that has been wrong for too
// long.
type StandingListing struct {
	Application, UID, Host string
}

// ClaimWatch finds the claims, and the entries of applications' lists, that have been
// stale for long enough, by the time of the one who watches: a claim that is written
// again begins anew.
type ClaimWatch struct {
	claims   map[string]watched // by host
	listings map[StandingListing]watched
}

type watched struct {
	write string // of the claim; empty where there is none
	at    time.Time
}

// Due are the claims that have been stale, as the very same write, for
// [ClaimStaleAfter], in the order of hosts.
func (w *ClaimWatch) Due(now time.Time, claims map[string]scafo.Claim, apps map[string]scafo.Application) []StandingClaim {
	next := make(map[string]watched)
	var due []StandingClaim
	for host, c := range claims {
		after, why := StaleClaim(c, apps)
		if why != "" && stands(now, w.claims, next, host, c.Write) {
			due = append(due, StandingClaim{Seen: c, After: after, Why: why})
		}
	}
	w.claims = next
	slices.SortFunc(due, func(a, b StandingClaim) int { return strings.Compare(a.Seen.Host, b.Seen.Host) })
	return due
}

// DueListings are the entries that have been wrong for [ClaimStaleAfter], in the
// order of applications and hosts.
func (w *ClaimWatch) DueListings(now time.Time, claims map[string]scafo.Claim, apps map[string]scafo.Application) []StandingListing {
	next := make(map[StandingListing]watched)
	var due []StandingListing
	for name, app := range apps {
		if app.Deleting != nil {
			continue
		}
		for _, d := range app.Domains {
			l := StandingListing{Application: name, UID: app.UID, Host: d.Host}
			c := claims[d.Host]
			if StaleListing(app, d, c) != ListingStands && stands(now, w.listings, next, l, c.Write) {
				due = append(due, l)
			}
		}
	}
	w.listings = next
	slices.SortFunc(due, func(a, b StandingListing) int {
		return cmp.Or(strings.Compare(a.Application, b.Application), strings.Compare(a.Host, b.Host))
	})
	return due
}

// stands notes that something is stale, and reports whether it has been for long
// enough.
func stands[K comparable](now time.Time, known, next map[K]watched, k K, write string) bool {
	seen, ok := known[k]
	if !ok || seen.write != write {
		seen = watched{write: write, at: now}
	}
	next[k] = seen
	return now.Sub(seen.at) >= ClaimStaleAfter
}
