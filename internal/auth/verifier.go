package auth

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/token"
)

// Records is what the verifier reads and writes in the registry.
type Records interface {
	// Operator and Node read a record afresh; absence is a not-found.
	Operator(ctx context.Context, id string) (scafo.Operator, error)
	Node(ctx context.Context, id string) (scafo.Node, error)
	// UseToken records that a token was used; bucket.ErrRefused is in the chain of
	// the error when it was used before.
	UseToken(ctx context.Context, exp time.Time, kid, jti string) error
}

// Options are what a [Verifier] may be given.
type Options struct {
	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil: slog.Default
	// IngressTokens are the opaque tokens of the storage and routing surfaces; with
	// none of them nobody is admitted there.
	IngressTokens []string
	// Verdict, when set, is told how every token was judged: "accepted" or the
	// reason of the refusal. The reasons are few and fixed.
	Verdict func(reason string)
	// Workloads, when set, has workload tokens accepted where a route takes them.
	Workloads *Workloads
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	records Records
	now     func() time.Time
	log     *slog.Logger
	verdict func(string)
	ingress ingressTokens
	keys    *keyCache
	used    usedSet

	workloads *Workloads
	reading   chan struct{} // holds one for each trust policy that is being read
}

// New makes a verifier.
func New(records Records, o Options) *Verifier {
	v := &Verifier{
		records: records, now: o.Now, log: o.Log, verdict: o.Verdict, ingress: newIngressTokens(o.IngressTokens),
		workloads: o.Workloads, reading: make(chan struct{}, maxPolicyReads),
	}
	if v.now == nil {
		v.now = time.Now
	}
	if v.log == nil {
		v.log = slog.Default()
	}
	if v.verdict == nil {
		v.verdict = func(string) {}
	}
	v.keys = newKeyCache(records, v.now)
	return v
}

// Invalid is the one refusal of a token that does not hold up. The cause is for
// the log.
func Invalid(cause error) *scafo.Error {
	return &scafo.Error{Code: scafo.CodeAuthInvalid, Err: cause}
}

// Bearer returns the token of the request's Authorization header: exactly one
// header of the Bearer scheme.
func Bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, t, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || t == "" {
		return "", false
	}
	return t, true
}

// Session is one request's verified token. Its signature holds; whether it was
// used before is not known until [Session.UseLocally] and [Session.Record] returned.
type Session struct {
	Principal Principal

	v      *Verifier
	claims *token.Claims
	key    ed25519.PublicKey
}

// Identify verifies a node's or an operator's token, everything but its being
// used once. Errors are auth-invalid, or store-unavailable when the key could not
// be read.
func (v *Verifier) Identify(ctx context.Context, bearer string) (*Session, error) {
	c, err := token.Parse(bearer)
	if err != nil {
		return nil, v.refuse(err)
	}
	if err := c.ValidAt(v.now()); err != nil {
		return nil, v.refuse(err)
	}
	k, err := v.keys.get(ctx, c.KeyID)
	if err != nil {
		return nil, v.refuse(err)
	}
	if !c.Verify(k.key) {
		return nil, v.refuse(token.Refusal("signature"))
	}
	return &Session{Principal: k.principal, v: v, claims: c, key: k.key}, nil
}

// RequireOperator reads the caller's operator record again, past the cache, so
// that a revoked or replaced key administers nothing: auth-invalid for those,
// auth-scope for a node.
func (s *Session) RequireOperator(ctx context.Context) error {
	if s.Principal.Kind != KindOperator {
		return scafo.Errorf(scafo.CodeAuthScope, "this route takes operator tokens only")
	}
	k, err := s.v.keys.fresh(ctx, s.claims.KeyID)
	if err != nil {
		return s.v.refuse(err)
	}
	if k.principal.Kind != KindOperator {
		return s.v.refuse(token.Refusal("revoked"))
	}
	if !k.key.Equal(s.key) && !s.claims.Verify(k.key) {
		return s.v.refuse(token.Refusal("replaced"))
	}
	s.Principal, s.key = k.principal, k.key
	return nil
}

// Record marks a token, which [Session.UseLocally] found to be new on this node, as
// used in the whole fleet: auth-invalid when it was, store-unavailable when the
// bucket could not tell.
func (s *Session) Record(ctx context.Context) error {
	err := s.v.records.UseToken(ctx, s.claims.Expires, s.claims.KeyID, s.claims.ID)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bucket.ErrRefused):
		return s.v.refuse(token.Refusal("replayed"))
	default:
		// It was not accepted: the same token may come again once the bucket is back.
		s.v.used.forget(s.claims.KeyID, s.claims.ID)
		return s.v.refuse(unavailable(err, "the bucket cannot tell whether this token was used"))
	}
}

// UseLocally marks the token as used on this node, which costs nothing. Calls that
// change nothing durable leave it at that; all others go on with [Session.Record].
func (s *Session) UseLocally() error {
	if !s.v.used.add(s.v.now(), s.claims.KeyID, s.claims.ID) {
		return s.v.refuse(token.Refusal("replayed"))
	}
	return nil
}

// Accepted counts a call whose token held up in every way.
func (s *Session) Accepted() { s.v.verdict("accepted") }

// Ingress checks the bearer token of the storage and routing surfaces.
func (v *Verifier) Ingress(bearer string) error {
	if !v.ingress.admit(bearer) {
		return v.refuse(token.Refusal("ingress-token"))
	}
	v.verdict("accepted")
	return nil
}

// Missing is the refusal of a request without a usable Authorization header.
func (v *Verifier) Missing() error { return v.refuse(token.Refusal("missing")) }

// Forget drops what is cached for an id, so that a change of its record counts at
// once on this node.
func (v *Verifier) Forget(id string) { v.keys.forget(id) }

// ForgetAll drops everything that is cached.
func (v *Verifier) ForgetAll() { v.keys.forgetAll() }

// refuse counts a refusal and turns it into what the caller gets.
func (v *Verifier) refuse(err error) error {
	var r token.Refusal
	if errors.As(err, &r) {
		v.verdict(string(r))
		return Invalid(err)
	}
	v.verdict("unavailable")
	return err
}

// unavailable keeps a store-unavailable as it is and makes one of anything else.
func unavailable(err error, detail string) error {
	if scafo.CodeOf(err) == scafo.CodeStoreUnavailable {
		return err
	}
	return scafo.Wrap(err, scafo.CodeStoreUnavailable, "%s", detail)
}
