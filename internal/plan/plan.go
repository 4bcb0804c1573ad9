// Package plan holds the decisions of a fleet: which nodes live, where an
// application runs, what a node starts and stops, how a deploy ended, and what is
// to be cleaned up.
//
// Everything here is a function of its arguments. Times are those of the reader
// and come in as values; nothing reads a clock, draws a random number, or does
// I/O, so that production and simulation run the same code.
package plan

import (
	"github.com/scafo/scafo"
)

// Servable reports whether the application is one that the fleet should serve:
// it has a deployment, and nobody blocked, retired or began to delete it.
func Servable(a scafo.Application) bool { return unservable(a) == "" }

// unservable says why the fleet does not serve the application; empty when it
// does.
func unservable(a scafo.Application) string {
	switch {
	case a.Deleting != nil:
		return "it is being deleted"
	case a.Blocked != nil:
		return "it is blocked"
	case a.Retired != nil:
		return "it is retired"
	case a.Deployment == "":
		return "nothing is deployed"
	}
	return ""
}

// Machine is a node as the decisions see it.
type Machine struct {
	ID     string
	Labels map[string]string
	// Live is whether the node counts as alive; Steady whether it has for long
	// enough to be given what it need not have.
	Live   bool
	Steady bool
	// Unsure is whether nothing was heard of the node since the observer began, so
	// that it counts as alive for the benefit of the doubt.
	Unsure bool
	// Draining is whether the node goes, or was told to give its applications up.
	Draining bool
	// NoRunner is whether the node runs no applications at all.
	NoRunner bool
	// Processes are what it said it runs.
	Processes []scafo.ProcessStatus
}

// Matches reports whether the labels have all that the selector asks for.
func Matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// suits is whether the node may keep the application if it lives.
func (m Machine) suits(a scafo.Application) bool {
	return !m.Draining && !m.NoRunner && Matches(m.Labels, a.Selector)
}

// Qualifies is whether the application may be placed on the node.
func (m Machine) Qualifies(a scafo.Application) bool { return m.Live && m.suits(a) }

// score ranks nodes for an application where nothing else does (rendezvous
// hashing): the same pair has the same score everywhere and for good. It is FNV-1a
// with the finishing steps of MurmurHash3, since FNV alone leaves the high bits of
// short inputs poorly mixed.
func score(uid, node string) uint64 {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	h := uint64(offset)
	for i := range len(uid) {
		h = (h ^ uint64(uid[i])) * prime
	}
	h = (h ^ 0xff) * prime // no uid and node run into each other
	for i := range len(node) {
		h = (h ^ uint64(node[i])) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
