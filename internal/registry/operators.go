package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/token"
)

// maxRead bounds the operators' documents that are kept as they were last read.
const maxRead = 256

// Operator is a trusted operator key, read afresh, or not-found. Every call of the API
// asks for one, so the store is asked whether the one that was last read still stands.
func (r *Registry) Operator(ctx context.Context, id string) (scafo.Operator, error) {
	key := OperatorKey(id)
	r.mu.Lock()
	d, known := r.operators[key]
	r.mu.Unlock()
	var err error
	if known {
		d, err = Reload(ctx, r, d)
	} else {
		d, err = Load[scafo.Operator](ctx, r, key)
	}
	if err == nil && (!d.Exists || d.Value.ID != id) {
		err = errNoOperator()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		delete(r.operators, key)
		return d.Value, err
	}
	if len(r.operators) >= maxRead {
		clear(r.operators)
	}
	r.operators[key] = d
	value := d.Value
	value.Applications = slices.Clone(value.Applications)
	return value, nil
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

func errNoOperator() error { return scafo.Errorf(scafo.CodeNotFound, "no such operator") }

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

// The index is what keeps the last key and the last admin: whoever is in it has a
// record, whatever happens at the same time. A registration writes the record
// first and lists it then; a removal takes it off the index first. Each of them
// reads the index, then the record, and changes the index only if it is still as it
// was read: what did not see the other one begins again. A removal that has left
// the index and not yet removed the record is marked there, and a registration that
// meets the mark writes the record anew, so that the removal, which is for the
// record that it read, does not take that.

// errMoved says that the index is not any more as this try read it.
var errMoved = errors.New("the operators changed meanwhile")

// AddOperator trusts a key. The identical record again is no change; an id that
// anything else has is reference-held. The id is claimed first.
func (r *Registry) AddOperator(ctx context.Context, op scafo.Operator) (added scafo.Operator, created bool, err error) {
	if err := checkOperator(&op); err != nil {
		return op, false, err
	}
	if err := r.claimID(ctx, op.ID, kindOperator, op.PublicKey); err != nil {
		return op, false, err
	}
	err = r.withIndex(ctx, func(index Doc[scafo.OperatorIndex]) error {
		d, made, err := r.trust(ctx, op, index.Value.Removing[op.ID])
		if err != nil {
			return err
		}
		added, created = d.Value, created || made
		if index.Value.Operators[op.ID] == op.Role {
			return nil
		}
		_, err = r.moveIndex(ctx, index, func(i *scafo.OperatorIndex) {
			i.Operators[op.ID] = op.Role
			delete(i.Removing, op.ID)
		})
		return err
	})
	if err != nil {
		return op, false, err
	}
	return added, created, r.Announce(ctx, OperatorKey(op.ID))
}

// trust writes the record of a key, unless it stands there already. going is the
// nonce of a record of that id whose removal has begun: that one counts as gone.
func (r *Registry) trust(ctx context.Context, op scafo.Operator, going string) (d Doc[scafo.Operator], made bool, err error) {
	d, err = Update(ctx, r, OperatorKey(op.ID), func(d *Doc[scafo.Operator]) error {
		was := d.Value
		if made = !d.Exists || going != "" && was.Write == going; made {
			d.Value = op
			if d.Value.CreatedAt.IsZero() {
				d.Value.CreatedAt = r.Now()
			}
			return nil
		}
		if was.PublicKey != op.PublicKey || was.Role != op.Role || was.Supersedes != op.Supersedes || !slices.Equal(was.Applications, op.Applications) {
			return scafo.Errorf(scafo.CodeReferenceHeld, "the id %s belongs to an operator key already", op.ID)
		}
		return ErrKeep
	})
	return d, made, err
}

// RemoveOperator revokes a key. Of two removals at once the second sees the first
// in the index, so that the last key and the last admin stay. A removal that died
// half-way is completed by the next one of that id. removed is true, beside an error
// too, once the key is revoked: then that could not be announced.
func (r *Registry) RemoveOperator(ctx context.Context, id string) (removed bool, err error) {
	if _, err := scafo.ParseID(kindOperator, id); err != nil {
		return false, errNoOperator()
	}
	err = r.withIndex(ctx, func(index Doc[scafo.OperatorIndex]) error {
		op, err := r.Operator(ctx, id)
		if err != nil {
			return err
		}
		if mark, begun := index.Value.Removing[id]; !begun || mark != op.Write {
			if err := mayRemove(index.Value.Operators, op); err != nil {
				return err
			}
			index, err = r.moveIndex(ctx, index, func(i *scafo.OperatorIndex) {
				delete(i.Operators, id)
				i.Removing[id] = op.Write
			})
			if err != nil {
				return err
			}
		}
		if mistake.Made(mistake.RemovalNotDone) {
			return nil
		}
		_, err = Remove(ctx, r, OperatorKey(id), func(now scafo.Operator) error {
			if now.Write != op.Write {
				return errMoved
			}
			return nil
		})
		if err != nil {
			return err
		}
		r.unmark(ctx, index, id, op.Write)
		return nil
	})
	if err != nil {
		return false, err
	}
	return true, r.Announce(ctx, OperatorKey(id))
}

// mayRemove refuses to take the last key, or the last admin, off the index.
func mayRemove(listed map[string]scafo.Role, op scafo.Operator) error {
	keys, admins := 0, 0
	for id, role := range listed {
		if id == op.ID {
			continue
		}
		keys++
		if role == scafo.RoleAdmin {
			admins++
		}
	}
	switch {
	case keys == 0:
		return scafo.Errorf(scafo.CodeReferenceHeld, "this is the last trusted operator key")
	case op.Role == scafo.RoleAdmin && admins == 0:
		return scafo.Errorf(scafo.CodeReferenceHeld, "this is the last admin key")
	}
	return nil
}

// unmark forgets a removal that is complete. The key is gone either way, and a mark
// that stays does no harm, so that its failure is none of the removal.
func (r *Registry) unmark(ctx context.Context, index Doc[scafo.OperatorIndex], id, nonce string) {
	_, err := updateFrom(ctx, r, &index, OperatorIndexKey, func(d *Doc[scafo.OperatorIndex]) error {
		if d.Value.Removing[id] != nonce {
			return ErrKeep
		}
		d.Value.Removing = maps.Clone(d.Value.Removing)
		delete(d.Value.Removing, id)
		return nil
	})
	if err != nil {
		r.log.Warn("the mark of a removed operator stays in the index", "operator", id, "err", err)
	}
}

// withIndex reads the index and has do act on it, again from the start as often as
// the index or the record moved meanwhile.
func (r *Registry) withIndex(ctx context.Context, do func(index Doc[scafo.OperatorIndex]) error) error {
	l := loop{r: r, key: OperatorIndexKey}
	for {
		index, err := Load[scafo.OperatorIndex](ctx, r, OperatorIndexKey)
		if err == nil && index.ETag == "" {
			// Whoever made the fleet died before it was complete.
			index, err = r.firstIndex(ctx)
		}
		if err != nil {
			return err
		}
		if err = do(index); !errors.Is(err, errMoved) {
			return err
		}
		if err := l.again(ctx, fmt.Errorf("%w: %w", bucket.ErrRefused, err), ""); err != nil {
			return err
		}
	}
}

// firstIndex completes a fleet that has no index yet.
func (r *Registry) firstIndex(ctx context.Context) (Doc[scafo.OperatorIndex], error) {
	f, err := r.Fleet(ctx)
	if err != nil {
		return Doc[scafo.OperatorIndex]{}, err
	}
	if _, err := r.completeInit(ctx, f.Founder); err != nil {
		return Doc[scafo.OperatorIndex]{}, err
	}
	return Load[scafo.OperatorIndex](ctx, r, OperatorIndexKey)
}

// moveIndex changes the index that was read; errMoved when it is another one by now.
func (r *Registry) moveIndex(ctx context.Context, index Doc[scafo.OperatorIndex], change func(*scafo.OperatorIndex)) (Doc[scafo.OperatorIndex], error) {
	return updateFrom(ctx, r, &index, OperatorIndexKey, func(d *Doc[scafo.OperatorIndex]) error {
		if d.ETag != index.ETag {
			return errMoved
		}
		operators, removing := map[string]scafo.Role{}, map[string]string{}
		maps.Copy(operators, d.Value.Operators)
		maps.Copy(removing, d.Value.Removing)
		d.Value.Operators, d.Value.Removing = operators, removing
		change(&d.Value)
		return nil
	})
}
