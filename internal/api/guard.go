package api

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
)

// tokenKind is which tokens a route takes.
type tokenKind int

const (
	public        tokenKind = iota // none is asked for
	ingressToken                   // an opaque token of the ingress
	nodeToken                      // a node's
	fleetToken                     // a node's or an operator's
	operatorToken                  // an operator's, whose record is read on every call
)

// access is what a route asks of its caller.
type access struct {
	kind tokenKind
	// application names the application that the caller must reach; nil takes the
	// parameter :name, where the route has one. An empty name is no application,
	// and nobody's scope is asked.
	application func(p params) (string, error)
	// localUse keeps the ids of used tokens in this node's memory alone. It is for
	// calls that change nothing durable and may cost no bucket request.
	localUse bool
}

// call is one request on its way through a route.
type call struct {
	w         http.ResponseWriter
	r         *http.Request
	params    params
	principal auth.Principal
}

// handler carries out a call whose caller may make it. It answers by value, so
// that nothing is sent before the guard agrees.
type handler func(ctx context.Context, c *call) (answer, error)

// serve guards a route and answers.
func (s *server) serve(c *call, rt *route) {
	a, err := s.guarded(c, rt)
	if err != nil {
		s.fail(c.w, c.r, err)
		return
	}
	a.write(c)
}

func (s *server) guarded(c *call, rt *route) (answer, error) {
	ctx := c.r.Context()
	if rt.access.kind == public {
		return rt.run(ctx, c)
	}
	bearer, ok := auth.Bearer(c.r.Header)
	if !ok {
		return answer{}, s.Verifier.Missing()
	}
	if rt.access.kind == ingressToken {
		if err := s.Verifier.Ingress(bearer); err != nil {
			return answer{}, err
		}
		return rt.run(ctx, c)
	}
	session, err := s.Verifier.Identify(ctx, bearer)
	if err != nil {
		return answer{}, err
	}
	if refusal := allow(ctx, session, rt, c.params); refusal != nil {
		// The token held up, so it is used up, whatever came of it.
		return answer{}, firstError(refuseUnused(ctx, session, rt, refusal), refusal)
	}
	c.principal = session.Principal
	return s.use(ctx, c, rt, session)
}

// refuseUnused uses up the token of a call that is refused all the same. A caller
// that was found out to be nobody has no token to use up.
func refuseUnused(ctx context.Context, session *auth.Session, rt *route, refusal error) error {
	switch scafo.CodeOf(refusal) {
	case scafo.CodeAuthInvalid, scafo.CodeStoreUnavailable:
		return nil
	}
	return use(ctx, session, rt)
}

func use(ctx context.Context, session *auth.Session, rt *route) error {
	if rt.access.localUse {
		return session.UseLocally()
	}
	return session.Use(ctx)
}

// use carries the call out. A call that changes something waits until its token is
// marked as used; a read is done beside that, and answers when both are done.
func (s *server) use(ctx context.Context, c *call, rt *route, session *auth.Session) (answer, error) {
	if rt.method != http.MethodGet || rt.access.localUse {
		if err := use(ctx, session, rt); err != nil {
			return answer{}, err
		}
		session.Accepted()
		return rt.run(ctx, c)
	}
	if err := session.UseLocally(); err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	used := make(chan error, 1)
	go func() {
		err := session.Record(ctx)
		if err != nil {
			cancel() // nobody will see what the read finds
		}
		used <- err
	}()
	a, err := rt.run(ctx, c)
	if refused := <-used; refused != nil {
		return answer{}, refused
	}
	session.Accepted()
	return a, err
}

// allow decides whether the caller may use the route, and name the application
// that the call names: which tokens, then whether that is a name, then scope.
// Nothing of the application was read yet.
func allow(ctx context.Context, session *auth.Session, rt *route, p params) error {
	switch rt.access.kind {
	case operatorToken:
		if err := session.RequireOperator(ctx); err != nil {
			return err
		}
	case nodeToken:
		if session.Principal.Kind != auth.KindNode {
			return scafo.Errorf(scafo.CodeAuthScope, "this route takes node tokens only")
		}
	}
	application, err := rt.access.names(p)
	if err != nil {
		return err
	}
	if application != "" && !session.Principal.Reaches(application) {
		// Which applications the key does reach is not for the answer.
		return scafo.Errorf(scafo.CodeAuthScope, "this key does not reach the application %s", application)
	}
	return nil
}

// names is the application that a call names, if it names one.
func (a access) names(p params) (string, error) {
	if a.application != nil {
		return a.application(p)
	}
	name, ok := p["name"]
	if !ok {
		return "", nil
	}
	return scafo.ParseApplicationName(name)
}

// run carries a call out. A panic is an error of this call: what the guard finds
// out beside it still counts first.
func (r *route) run(ctx context.Context, c *call) (a answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			a, err = answer{}, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return r.handle(ctx, c)
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
