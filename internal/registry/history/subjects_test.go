package history

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// ---- An application's record.

type appState struct {
	exists  bool
	label   string
	blocked bool
	seq     int64
}

type appOp struct {
	what  string // create, label, block, unblock, bump, read
	label string
}

type appValue struct {
	refused string
	changed bool
	now     appState
}

const theApp = "shop"

func stateOf(a scafo.Application) appState {
	return appState{exists: true, label: a.Labels["l"], blocked: a.Blocked != nil, seq: a.DeploySeq}
}

func runApp(ctx context.Context, r *registry.Registry, in any) (any, error) {
	op := in.(appOp)
	var a scafo.Application
	var changed bool
	var err error
	switch op.what {
	case "create":
		_, changed, err = r.CreateApplication(ctx, theApp, "someone", nil)
		code, err := refusal(err)
		// The record that it returns may be a newer one than it made.
		return appValue{refused: code, changed: changed}, err
	case "label":
		a, changed, err = r.LabelApplication(ctx, theApp, map[string]string{"l": op.label})
	case "block":
		a, changed, err = r.BlockApplication(ctx, theApp, "someone")
	case "unblock":
		a, changed, err = r.UnblockApplication(ctx, theApp)
	case "bump":
		changed = true
		a, err = r.UpdateApplication(ctx, theApp, func(a *scafo.Application) error { a.DeploySeq++; return nil })
	case "read":
		a, err = r.Application(ctx, theApp)
	}
	code, err := refusal(err)
	if code != "" || err != nil {
		return appValue{refused: code}, err
	}
	return appValue{changed: changed, now: stateOf(a)}, nil
}

func applyApp(in, what any) (any, any) {
	s, op := in.(appState), what.(appOp)
	if !s.exists && op.what != "create" {
		return s, appValue{refused: string(scafo.CodeNotFound)}
	}
	before := s
	switch op.what {
	case "create":
		s.exists = true
		return s, appValue{changed: s != before}
	case "label":
		s.label = op.label
	case "block":
		s.blocked = true
	case "unblock":
		s.blocked = false
	case "bump":
		s.seq++
	}
	return s, appValue{changed: s != before, now: s}
}

var applications = subject{
	name:    "application",
	prepare: func(context.Context, *registry.Registry) error { return nil },
	next: func(rng *rand.Rand) any {
		what := []string{"create", "label", "label", "block", "unblock", "bump", "bump", "read", "read"}[rng.IntN(9)]
		op := appOp{what: what}
		if what == "label" {
			op.label = fmt.Sprint(rng.IntN(1000))
		}
		return op
	},
	run: runApp, first: appState{}, apply: applyApp, final: []any{appOp{what: "read"}},
}

// ---- The freeze of the fleet's deploys.

type freezeOp struct{ what, by string } // freeze, lift, read

type freezeValue struct {
	by      string
	changed bool
}

func runFreeze(ctx context.Context, r *registry.Registry, in any) (any, error) {
	switch op := in.(freezeOp); op.what {
	case "freeze":
		f, created, err := r.FreezeDeploys(ctx, op.by, "")
		return freezeValue{by: f.By, changed: created}, err
	case "lift":
		lifted, err := r.LiftFreeze(ctx)
		return freezeValue{changed: lifted}, err
	default:
		f, err := r.Freeze(ctx)
		if f == nil {
			return freezeValue{}, err
		}
		return freezeValue{by: f.By}, err
	}
}

func applyFreeze(in, what any) (any, any) {
	by, op := in.(string), what.(freezeOp)
	switch op.what {
	case "freeze":
		if by != "" {
			return by, freezeValue{by: by}
		}
		return op.by, freezeValue{by: op.by, changed: true}
	case "lift":
		return "", freezeValue{changed: by != ""}
	default:
		return by, freezeValue{by: by}
	}
}

var freezes = subject{
	name:    "freeze",
	prepare: func(context.Context, *registry.Registry) error { return nil },
	next: func(rng *rand.Rand) any {
		op := freezeOp{what: []string{"freeze", "freeze", "lift", "read"}[rng.IntN(4)]}
		if op.what == "freeze" {
			op.by = fmt.Sprint("op", rng.IntN(1000))
		}
		return op
	},
	run: runFreeze, first: "", apply: applyFreeze, final: []any{freezeOp{what: "read"}},
}

// ---- Trusted operators: the last admin stays.

var operatorIDs = [...]string{"root", "second", "third"} // all of them admins

type trusted [len(operatorIDs)]bool

type operatorOp struct {
	what string // add, remove, read
	who  int
}

type operatorValue struct {
	refused string
	changed bool
	there   bool
}

func operatorOf(i int) scafo.Operator {
	seed := sha256.Sum256([]byte(operatorIDs[i]))
	public := ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey)
	return scafo.Operator{
		ID: operatorIDs[i], Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"},
		PublicKey: scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: base64.RawURLEncoding.EncodeToString(public)},
	}
}

func runOperator(ctx context.Context, r *registry.Registry, in any) (any, error) {
	op := in.(operatorOp)
	var v operatorValue
	var err error
	switch op.what {
	case "add":
		_, v.changed, err = r.AddOperator(ctx, operatorOf(op.who))
	case "remove":
		v.changed, err = r.RemoveOperator(ctx, operatorIDs[op.who])
	case "read":
		_, err = r.Operator(ctx, operatorIDs[op.who])
		v.there = err == nil
	}
	v.refused, err = refusal(err)
	return v, err
}

func applyOperator(in, what any) (any, any) {
	s, op := in.(trusted), what.(operatorOp)
	switch op.what {
	case "add":
		was := s[op.who]
		s[op.who] = true
		return s, operatorValue{changed: !was}
	case "remove":
		if !s[op.who] {
			return s, operatorValue{refused: string(scafo.CodeNotFound)}
		}
		without := s
		without[op.who] = false
		if without == (trusted{}) {
			return s, operatorValue{refused: string(scafo.CodeReferenceHeld)}
		}
		return without, operatorValue{changed: true}
	default:
		if !s[op.who] {
			return s, operatorValue{refused: string(scafo.CodeNotFound)}
		}
		return s, operatorValue{there: true}
	}
}

// A removal is in two documents: it counts for the last admin when it leaves the index,
// and for the key itself when the record goes. In between a key may still be read, and
// may keep another one from going. Two removals of one key at once complete each other,
// and both say that it is gone.
func looseOperator(in, out, beside any) bool {
	op, v, b := in.(operatorOp), out.(operatorValue), beside.(operatorOp)
	switch {
	case op.what == "read":
		return b.what != "read" && b.who == op.who
	case op.what == "remove" && v.refused == string(scafo.CodeReferenceHeld):
		return b.what != "read"
	case op.what == "remove" && v.changed:
		return b.what == "remove" && b.who == op.who
	}
	return false
}

// A registration that met a removal of its id writes the key anew, and a removal that
// met a registration takes the new one too.
func repeatsOperator(in, beside any) bool {
	op, b := in.(operatorOp), beside.(operatorOp)
	return op.who == b.who && (op.what == "add" && b.what == "remove" || op.what == "remove" && b.what == "add")
}

var operators = subject{
	name: "operators",
	prepare: func(ctx context.Context, r *registry.Registry) error {
		_, err := r.InitFleet(ctx, operatorOf(0))
		return err
	},
	next: func(rng *rand.Rand) any {
		return operatorOp{what: []string{"add", "remove", "remove", "read"}[rng.IntN(4)], who: rng.IntN(len(operatorIDs))}
	},
	run: runOperator, first: trusted{true}, apply: applyOperator, loose: looseOperator, repeats: repeatsOperator,
	final: []any{operatorOp{"read", 0}, operatorOp{"read", 1}, operatorOp{"read", 2}},
}
