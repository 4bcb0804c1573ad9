package auth

import (
	"github.com/scafo/scafo"
)

// Grant is what a caller asks to trust: a key of its own that replaces the one it
// signs with, or a fresh one beside it. Its values are parsed.
type Grant struct {
	ID        string
	PublicKey scafo.PublicKey
	Role      scafo.Role // empty: not said
	// Supersedes is the id that the key replaces; nil for a fresh grant.
	Supersedes   *string
	Applications scafo.Scope // nil: not said
}

// Grant is the record that an operator's grant makes, or its refusal: a grant is
// never wider than its grantor. What is not said is inherited by a replacement; a
// fresh key has the least tier, and no scope unless one is named.
func (p Principal) Grant(g Grant) (scafo.Operator, error) {
	op := scafo.Operator{ID: g.ID, PublicKey: g.PublicKey, Role: g.Role, Applications: g.Applications, CreatedBy: p.ID}
	replaces := g.Supersedes != nil
	if replaces {
		if *g.Supersedes != p.ID {
			return op, scafo.Errorf(scafo.CodeAuthScope, "a key may supersede only the key that registers it: it could revoke the other one")
		}
		if g.ID == p.ID {
			return op, scafo.Errorf(scafo.CodeInvalidInput, "a key cannot supersede itself: the replacement needs an id of its own")
		}
		op.Supersedes = p.ID
	}
	if op.Role == "" {
		op.Role = scafo.RoleOperator
		if replaces {
			op.Role = p.Role
		}
	}
	if op.Applications == nil {
		if !replaces {
			return op, scafo.Errorf(scafo.CodeInvalidInput, "applications is missing: a fresh key inherits no scope")
		}
		op.Applications = p.Scope
	}
	switch {
	case op.Role == scafo.RoleAdmin && !p.Admin():
		return op, scafo.Errorf(scafo.CodeAuthScope, "only an admin key may register an admin key")
	case !p.Scope.Covers(op.Applications):
		return op, scafo.Errorf(scafo.CodeAuthScope, "applications reaches past the scope of the key that registers it")
	case op.Applications.All() && !replaces && !p.Admin():
		return op, scafo.Errorf(scafo.CodeAuthScope, `only an admin key may give "*" to a key beside itself`)
	}
	return op, nil
}

// MayRevoke decides whether an operator may revoke the key of an id, whether or not
// there is one.
func (p Principal) MayRevoke(id string) error {
	switch {
	case id == p.ID:
		return scafo.Errorf(scafo.CodeInvalidInput, "a key cannot revoke itself: rotate it instead")
	case p.Admin(), p.Supersedes != "" && id == p.Supersedes:
		return nil
	}
	return scafo.Errorf(scafo.CodeAuthScope, "this key may revoke only the key that it was registered to replace")
}

// MayList reports whether an operator sees another one's record: an admin sees all
// of them, others one step of their own lineage.
func (p Principal) MayList(op scafo.Operator) bool {
	return p.Admin() || op.ID == p.ID || p.Supersedes != "" && op.ID == p.Supersedes || op.Supersedes == p.ID
}
