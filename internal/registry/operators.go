package registry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/token"
)

// Operator is a trusted operator key, read afresh, or not-found.
func (r *Registry) Operator(ctx context.Context, id string) (scafo.Operator, error) {
	d, err := Load[scafo.Operator](ctx, r, OperatorKey(id))
	if err == nil && (!d.Exists || d.Value.ID != id) {
		err = scafo.Errorf(scafo.CodeNotFound, "no such operator")
	}
	return d.Value, err
}

// Operators are the trusted operator keys, in the order of their ids.
func (r *Registry) Operators(ctx context.Context) ([]scafo.Operator, error) {
	docs, err := loadAll[scafo.Operator](ctx, r, OperatorPrefix)
	if err != nil {
		return nil, err
	}
	out := make([]scafo.Operator, 0, len(docs))
	for _, d := range docs {
		out = append(out, d.Value)
	}
	slices.SortFunc(out, func(a, b scafo.Operator) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

func checkOperator(op *scafo.Operator) error {
	if _, err := scafo.ParseID(kindOperator, op.ID); err != nil {
		return err
	}
	if _, err := scafo.ParseScope(op.Applications); err != nil {
		return err
	}
	if _, err := token.ParsePublicKey(op.PublicKey); err != nil {
		return err
	}
	if op.Role != scafo.RoleAdmin && op.Role != scafo.RoleOperator {
		return scafo.Errorf(scafo.CodeInvalidInput, "a role is admin or operator")
	}
	return nil
}

// AddOperator trusts a key. The identical record again is no change; an id that
// anything else has is reference-held. The id is claimed first, the record comes
// before its row in the index: a row never stands for a key that is not there.
func (r *Registry) AddOperator(ctx context.Context, op scafo.Operator) (added scafo.Operator, created bool, err error) {
	if err := checkOperator(&op); err != nil {
		return op, false, err
	}
	if err := r.claimID(ctx, op.ID, kindOperator, op.PublicKey); err != nil {
		return op, false, err
	}
	d, err := Update(ctx, r, OperatorKey(op.ID), func(d *Doc[scafo.Operator]) error {
		created = !d.Exists
		if !d.Exists {
			d.Value = op
			if d.Value.CreatedAt.IsZero() {
				d.Value.CreatedAt = r.Now()
			}
			return nil
		}
		was := d.Value
		if was.PublicKey != op.PublicKey || was.Role != op.Role || was.Supersedes != op.Supersedes || !slices.Equal(was.Applications, op.Applications) {
			return scafo.Errorf(scafo.CodeReferenceHeld, "the id %s belongs to an operator key already", op.ID)
		}
		return ErrKeep
	})
	if err != nil {
		return op, false, err
	}
	_, err = Update(ctx, r, OperatorIndexKey, func(d *Doc[scafo.OperatorIndex]) error {
		if d.Value.Operators[op.ID] == op.Role {
			return ErrKeep
		}
		d.Value.Operators = maps.Clone(d.Value.Operators)
		if d.Value.Operators == nil {
			d.Value.Operators = map[string]scafo.Role{}
		}
		d.Value.Operators[op.ID] = op.Role
		return nil
	})
	if err != nil {
		return op, false, err
	}
	return d.Value, created, r.Announce(ctx, OperatorKey(op.ID))
}

// RemoveOperator revokes a key. The index changes first: it is one document, so
// that of two removals at once the second sees the first, and the last key and
// the last admin stay. A removal that died in between is completed by the next.
func (r *Registry) RemoveOperator(ctx context.Context, id string) error {
	if _, err := r.Operator(ctx, id); err != nil {
		return err
	}
	_, err := Update(ctx, r, OperatorIndexKey, func(d *Doc[scafo.OperatorIndex]) error {
		role, there := d.Value.Operators[id]
		left := maps.Clone(d.Value.Operators)
		delete(left, id)
		if len(left) == 0 {
			return scafo.Errorf(scafo.CodeReferenceHeld, "this is the last trusted operator key")
		}
		admins := slices.Contains(slices.Collect(maps.Values(left)), scafo.RoleAdmin)
		if role == scafo.RoleAdmin && !admins {
			return scafo.Errorf(scafo.CodeReferenceHeld, "this is the last admin key")
		}
		if !there {
			return ErrKeep
		}
		d.Value.Operators = left
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := Remove[scafo.Operator](ctx, r, OperatorKey(id), nil); err != nil {
		return err
	}
	return r.Announce(ctx, OperatorKey(id))
}
