package auth_test

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/tokentest"
)

// records is a registry in memory that counts its calls.
type records struct {
	mu        sync.Mutex
	operators map[string]scafo.Operator
	nodes     map[string]scafo.Node
	used      map[string]bool
	away      error
	slow      time.Duration

	reads, uses atomic.Int64
}

func newRecords() *records {
	return &records{operators: map[string]scafo.Operator{}, nodes: map[string]scafo.Node{}, used: map[string]bool{}}
}

func (r *records) begin(ctx context.Context) error {
	if r.slow > 0 {
		select {
		case <-time.After(r.slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	return r.away
}

func (r *records) Operator(ctx context.Context, id string) (scafo.Operator, error) {
	r.reads.Add(1)
	err := r.begin(ctx)
	defer r.mu.Unlock()
	if err != nil {
		return scafo.Operator{}, err
	}
	if o, ok := r.operators[id]; ok {
		return o, nil
	}
	return scafo.Operator{}, scafo.Errorf(scafo.CodeNotFound, "no such operator")
}

func (r *records) Node(ctx context.Context, id string) (scafo.Node, error) {
	r.reads.Add(1)
	err := r.begin(ctx)
	defer r.mu.Unlock()
	if err != nil {
		return scafo.Node{}, err
	}
	if n, ok := r.nodes[id]; ok {
		return n, nil
	}
	return scafo.Node{}, scafo.Errorf(scafo.CodeNotFound, "no such node")
}

func (r *records) UseToken(ctx context.Context, exp time.Time, kid, jti string) error {
	r.uses.Add(1)
	err := r.begin(ctx)
	defer r.mu.Unlock()
	if err != nil {
		return err
	}
	key := fmt.Sprint(exp.Unix(), kid, jti)
	if r.used[key] {
		return &bucket.Error{Op: "create", Key: key, Kind: bucket.ErrRefused}
	}
	r.used[key] = true
	return nil
}

func (r *records) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func signer(id string) tokentest.Signer {
	seed := sha256.Sum256([]byte(id))
	return tokentest.Signer{ID: id, Private: ed25519.NewKeyFromSeed(seed[:])}
}

func jwk(s tokentest.Signer) scafo.PublicKey {
	k, _ := s.Private.Public().(ed25519.PublicKey)
	return token.PublicJWK(k)
}

func (r *records) addOperator(s tokentest.Signer, role scafo.Role, scope ...string) {
	r.set(func() {
		r.operators[s.ID] = scafo.Operator{ID: s.ID, PublicKey: jwk(s), Role: role, Applications: scope}
	})
}

func (r *records) addNode(s tokentest.Signer) {
	r.set(func() { r.nodes[s.ID] = scafo.Node{ID: s.ID, PublicKey: jwk(s)} })
}

var seeds atomic.Int64

func fresh(s tokentest.Signer) string {
	return tokentest.Good(s, time.Now(), fmt.Sprint("fresh-", seeds.Add(1)))
}

func newVerifier(r *records) *auth.Verifier {
	return auth.New(r, auth.Options{Log: slog.New(slog.DiscardHandler), IngressTokens: []string{"one", "two"}})
}

// use marks a token as used, as calls do that change something.
func use(ctx context.Context, s *auth.Session) error {
	if err := s.UseLocally(); err != nil {
		return err
	}
	return s.Record(ctx)
}

func wantCode(t *testing.T, err error, want scafo.Code) {
	t.Helper()
	if got := scafo.CodeOf(err); got != want {
		t.Errorf("code %q, want %q (%v)", got, want, err)
	}
}

func TestPrincipals(t *testing.T) {
	r := newRecords()
	r.addOperator(signer("admin"), scafo.RoleAdmin, "*")
	r.addOperator(signer("op"), scafo.RoleOperator, "shop", "blog-*")
	r.addNode(signer("node"))
	// The keyspace is one; should both records exist all the same, the operator's counts.
	r.addNode(signer("op"))
	v := newVerifier(r)
	for _, c := range []struct {
		id          string
		kind        auth.Kind
		admin       bool
		whole       bool
		reaches, no string
	}{
		{"admin", auth.KindOperator, true, true, "anything", ""},
		{"op", auth.KindOperator, false, false, "shop", "shop2"},
		{"op", auth.KindOperator, false, false, "blog-x", "blog"},
		{"node", auth.KindNode, false, true, "anything", ""},
	} {
		s, err := v.Identify(t.Context(), fresh(signer(c.id)))
		if err != nil {
			t.Fatal(c.id, err)
		}
		p := s.Principal
		if p.Kind != c.kind || p.ID != c.id || p.Admin() != c.admin || p.Whole() != c.whole || !p.Reaches(c.reaches) || c.no != "" && p.Reaches(c.no) {
			t.Errorf("%s: %+v", c.id, p)
		}
	}
}

func TestKeyCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.addOperator(signer("op"), scafo.RoleOperator, "*")
		v := newVerifier(r)
		identify := func() error { _, err := v.Identify(t.Context(), fresh(signer("op"))); return err }
		if err := identify(); err != nil {
			t.Fatal(err)
		}
		r.set(func() { delete(r.operators, "op") })
		time.Sleep(auth.KeyTTL - time.Nanosecond)
		if err := identify(); err != nil {
			t.Errorf("within the bound: %v", err)
		}
		if n := r.reads.Load(); n != 1 {
			t.Errorf("%d reads", n)
		}
		time.Sleep(time.Nanosecond)
		wantCode(t, identify(), scafo.CodeAuthInvalid)
	})
}

func TestOperatorRoutesReadTheRecordAgain(t *testing.T) {
	r := newRecords()
	op, node := signer("op"), signer("node")
	r.addOperator(op, scafo.RoleAdmin, "*")
	r.addNode(node)
	v := newVerifier(r)
	session := func(s tokentest.Signer) *auth.Session {
		got, err := v.Identify(t.Context(), fresh(s))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if err := session(op).RequireOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, session(node).RequireOperator(t.Context()), scafo.CodeAuthScope)

	r.addOperator(op, scafo.RoleOperator, "shop")
	s := session(op)
	if err := s.RequireOperator(t.Context()); err != nil || s.Principal.Admin() || s.Principal.Reaches("blog") {
		t.Errorf("an old tier or scope counts: %+v, %v", s.Principal, err)
	}

	// Another key under the same id: what the old one signed is worth nothing now.
	s = session(op)
	r.set(func() {
		o := r.operators["op"]
		o.PublicKey = jwk(signer("successor"))
		r.operators["op"] = o
	})
	wantCode(t, s.RequireOperator(t.Context()), scafo.CodeAuthInvalid)
	v.Forget("op")
	r.addOperator(op, scafo.RoleOperator, "shop")

	s = session(op)
	r.set(func() { delete(r.operators, "op") })
	wantCode(t, s.RequireOperator(t.Context()), scafo.CodeAuthInvalid)
	// What was found out counts at once, on the other routes too.
	_, err := v.Identify(t.Context(), fresh(op))
	wantCode(t, err, scafo.CodeAuthInvalid)
}

func TestRemovedNodes(t *testing.T) {
	r := newRecords()
	r.addNode(signer("node"))
	r.set(func() {
		n := r.nodes["node"]
		n.Removed = &scafo.Stamp{By: "admin"}
		r.nodes["node"] = n
	})
	_, err := newVerifier(r).Identify(t.Context(), fresh(signer("node")))
	wantCode(t, err, scafo.CodeAuthInvalid)
}

func TestRecordedKeyOfSmallOrderIsNoKey(t *testing.T) {
	r := newRecords()
	weak := scafo.PublicKey{Kty: "OKP", Crv: "Ed25519", X: "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}
	r.operators["op"] = scafo.Operator{ID: "op", PublicKey: weak, Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}}
	// The signature R = the identity, S = 0 fits every message under that key.
	good := fresh(signer("op"))
	forged := good[:strings.LastIndex(good, ".")+1] + tokentest.B64("\x01"+strings.Repeat("\x00", 63))
	_, err := newVerifier(r).Identify(t.Context(), forged)
	wantCode(t, err, scafo.CodeAuthInvalid)
}

func TestUnknownKeysCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		v := newVerifier(r)
		identify := func(id string) error { _, err := v.Identify(t.Context(), fresh(signer(id))); return err }
		wantCode(t, identify("late"), scafo.CodeAuthInvalid)
		before := r.reads.Load()
		for range 100 {
			wantCode(t, identify("late"), scafo.CodeAuthInvalid)
		}
		if n := r.reads.Load() - before; n != 0 {
			t.Errorf("%d reads for an id that is known to be unknown", n)
		}
		r.addOperator(signer("late"), scafo.RoleOperator, "*")
		time.Sleep(auth.UnknownTTL)
		if err := identify("late"); err != nil {
			t.Errorf("a new key waits longer than %v: %v", auth.UnknownTTL, err)
		}
	})
}

func TestFloodOfUnknownKeysIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.slow = 10 * time.Millisecond
		known := signer("known")
		r.addOperator(known, scafo.RoleOperator, "*")
		v := newVerifier(r)
		if _, err := v.Identify(t.Context(), fresh(known)); err != nil {
			t.Fatal(err)
		}
		before := r.reads.Load()
		const flood = 800
		tokens := make([]string, flood)
		for i := range tokens {
			tokens[i] = fresh(signer(fmt.Sprint("stranger-", i)))
		}
		var wg sync.WaitGroup
		var invalid, unavailable atomic.Int64
		for _, tok := range tokens {
			wg.Go(func() {
				_, err := v.Identify(t.Context(), tok)
				switch scafo.CodeOf(err) {
				case scafo.CodeAuthInvalid:
					invalid.Add(1)
				case scafo.CodeStoreUnavailable:
					unavailable.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		most := int64(2 * (auth.UnknownBurst + auth.UnknownPerSecond*int(auth.LookupWait/time.Second+1)))
		if n := r.reads.Load() - before; n > most {
			t.Errorf("%d strangers cost %d reads, more than %d", flood, n, most)
		}
		if invalid.Load() < auth.UnknownBurst || unavailable.Load() == 0 {
			t.Errorf("%d refused, %d put off", invalid.Load(), unavailable.Load())
		}
		// A key that is cached does not notice.
		if _, err := v.Identify(t.Context(), fresh(known)); err != nil {
			t.Error(err)
		}
	})
}

func TestKnownKeysDoNotSpendTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		v := newVerifier(r)
		for i := range 2 * auth.UnknownBurst {
			s := signer(fmt.Sprint("op-", i))
			r.addOperator(s, scafo.RoleOperator, "*")
			if _, err := v.Identify(t.Context(), fresh(s)); err != nil {
				t.Fatal(i, err)
			}
		}
	})
}

func TestOneLookupForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		r.slow = time.Second
		op := signer("op")
		r.addOperator(op, scafo.RoleOperator, "*")
		v := newVerifier(r)
		gone, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { // the first one leaves; the others get their answer all the same
			_, err := v.Identify(gone, fresh(op))
			wantCode(t, err, scafo.CodeStoreUnavailable)
		})
		synctest.Wait()
		for range 20 {
			wg.Go(func() {
				if _, err := v.Identify(t.Context(), fresh(op)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if n := r.reads.Load(); n != 1 {
			t.Errorf("%d reads", n)
		}
	})
}

func TestSingleUse(t *testing.T) {
	r := newRecords()
	op := signer("op")
	r.addOperator(op, scafo.RoleOperator, "*")
	a, b := newVerifier(r), newVerifier(r)
	useAt := func(v *auth.Verifier, tok string) error {
		s, err := v.Identify(t.Context(), tok)
		if err != nil {
			t.Fatal(err)
		}
		return use(t.Context(), s)
	}
	tok := fresh(op)
	if err := useAt(a, tok); err != nil {
		t.Fatal(err)
	}
	wantCode(t, useAt(a, tok), scafo.CodeAuthInvalid)
	if n := r.uses.Load(); n != 1 {
		t.Errorf("a replay on the same node cost a bucket request: %d", n)
	}
	wantCode(t, useAt(b, tok), scafo.CodeAuthInvalid)

	tok = fresh(op)
	var accepted atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if useAt([]*auth.Verifier{a, b}[i%2], tok) == nil {
				accepted.Add(1)
			}
		})
	}
	wg.Wait()
	if n := accepted.Load(); n != 1 {
		t.Errorf("one token was accepted %d times", n)
	}
}

func TestLocalUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		node := signer("node")
		r.addNode(node)
		v := newVerifier(r)
		session := func(tok string) *auth.Session {
			s, err := v.Identify(t.Context(), tok)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		tok := fresh(node)
		if err := session(tok).UseLocally(); err != nil {
			t.Fatal(err)
		}
		wantCode(t, session(tok).UseLocally(), scafo.CodeAuthInvalid)
		wantCode(t, use(t.Context(), session(tok)), scafo.CodeAuthInvalid)
		// It is remembered for as long as it could come again.
		s := session(tok)
		for range 9 {
			time.Sleep(10 * time.Second)
			if err := session(fresh(node)).UseLocally(); err != nil {
				t.Fatal(err)
			}
			wantCode(t, s.UseLocally(), scafo.CodeAuthInvalid)
		}
		if n := r.uses.Load(); n != 0 {
			t.Errorf("%d bucket requests", n)
		}
	})
}

func TestStoreAway(t *testing.T) {
	for name, away := range map[string]error{
		"as the registry says it": scafo.Wrap(bucket.ErrUnavailable, scafo.CodeStoreUnavailable, "away"),
		"as the bucket says it":   &bucket.Error{Op: "get", Kind: bucket.ErrUnavailable},
		"outcome unknown":         &bucket.Error{Op: "create", Kind: bucket.ErrUnknown},
		"anything else":           errors.New("broken"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecords()
			op := signer("op")
			r.addOperator(op, scafo.RoleOperator, "*")
			v := newVerifier(r)
			r.set(func() { r.away = away })
			_, err := v.Identify(t.Context(), fresh(op))
			wantCode(t, err, scafo.CodeStoreUnavailable)
			r.set(func() { r.away = nil })
			tok := fresh(op)
			s, err := v.Identify(t.Context(), tok)
			if err != nil {
				t.Fatalf("after the store came back: %v", err)
			}
			r.set(func() { r.away = away })
			wantCode(t, use(t.Context(), s), scafo.CodeStoreUnavailable)
			wantCode(t, s.RequireOperator(t.Context()), scafo.CodeStoreUnavailable)
			r.set(func() { r.away = nil })
			// It was never accepted, so it may come again.
			if err := use(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestIngress(t *testing.T) {
	v := newVerifier(newRecords())
	for tok, ok := range map[string]bool{"one": true, "two": true, "": false, "on": false, "onetwo": false, "One": false, "one ": false} {
		if err := v.Ingress(tok); (err == nil) != ok {
			t.Errorf("%q: %v", tok, err)
		} else if !ok {
			wantCode(t, err, scafo.CodeAuthInvalid)
		}
	}
	none := auth.New(newRecords(), auth.Options{IngressTokens: []string{""}})
	wantCode(t, none.Ingress(""), scafo.CodeAuthInvalid)
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   string
		ok     bool
	}{
		{nil, "", false},
		{[]string{""}, "", false},
		{[]string{"Bearer"}, "", false},
		{[]string{"Bearer "}, "", false},
		{[]string{"Basic x"}, "", false},
		{[]string{"Bearer x", "Bearer x"}, "", false},
		{[]string{"Bearer x"}, "x", true},
		{[]string{"bearer x"}, "x", true},
	} {
		got, ok := auth.Bearer(http.Header{"Authorization": c.values})
		if got != c.want || ok != c.ok {
			t.Errorf("%q: %q, %v", c.values, got, ok)
		}
	}
}

// The clock stands still: a token of the near future is good a moment later.
func TestVerdicts(t *testing.T) { synctest.Test(t, testVerdicts) }

func testVerdicts(t *testing.T) {
	r := newRecords()
	r.addOperator(signer("op"), scafo.RoleOperator, "*")
	var mu sync.Mutex
	counts := map[string]int{}
	v := auth.New(r, auth.Options{Verdict: func(s string) { mu.Lock(); counts[s]++; mu.Unlock() }})
	now := time.Now()
	for _, b := range tokentest.All(signer("op"), signer("op-2"), signer("op-3"), now) {
		if tok, ok := auth.Bearer(http.Header{"Authorization": b.Authorization}); ok {
			_, err := v.Identify(t.Context(), tok)
			wantCode(t, err, scafo.CodeAuthInvalid)
		}
	}
	const most = 40
	if len(counts) < 10 || len(counts) > most {
		t.Errorf("%d kinds of verdict: %v", len(counts), counts)
	}
}
