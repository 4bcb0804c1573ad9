// Package auth turns a request's Authorization header into a principal: whose key
// signed the token, what it may reach, and whether the token was used before.
package auth

import (
	"github.com/scafo/scafo"
)

// Kind is what sort of caller a principal is.
type Kind string

// The kinds of caller that present a token.
const (
	KindNode     Kind = "node"
	KindOperator Kind = "operator"
	KindWorkload Kind = "workload"
)

// Principal is a verified caller.
type Principal struct {
	Kind Kind
	ID   string // node or operator id; the subject of a workload token
	// Role and Scope are an operator's.
	Role  scafo.Role
	Scope scafo.Scope
	// Supersedes is the key that an operator's was registered to replace.
	Supersedes string
	// Application is the only one that a workload token reaches.
	Application string
	// OIDC is what a workload token said.
	OIDC *scafo.Provenance
}

// Admin reports whether the caller is an operator of the admin tier.
func (p Principal) Admin() bool { return p.Kind == KindOperator && p.Role == scafo.RoleAdmin }

// Whole reports whether reads answer everything to this caller: to nodes, and to
// admin operators whatever their scope.
func (p Principal) Whole() bool { return p.Kind == KindNode || p.Admin() }

// Reaches reports whether the caller may name the application. A scope bounds
// operators of both tiers.
func (p Principal) Reaches(application string) bool {
	switch p.Kind {
	case KindNode:
		return true
	case KindOperator:
		return p.Scope.Reaches(application)
	case KindWorkload:
		return application != "" && application == p.Application
	}
	return false
}
