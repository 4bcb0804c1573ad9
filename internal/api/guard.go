package api

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/oidc"
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
	// admin, when set, is the refusal of an operator that is no admin, whose scope was
	// looked at before.
	admin string
	// localUse keeps the ids of used tokens in this node's memory alone. It is for
	// calls that change nothing durable and may cost no bucket request.
	localUse bool
	// workload is what a workload token may do here.
	workload workloadAccess
}

// workloadAccess is what a route makes of workload tokens. Such a token is verified
// against the trust policy of the application that the call names.
type workloadAccess int

const (
	noWorkload      workloadAccess = iota // it does not hold up here, like a token of nobody
	refusesWorkload                       // one that holds up is told that it does not reach this
	takesWorkload
)

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
	if oidc.Issued(bearer) {
		return s.workload(ctx, c, rt, bearer)
	}
	session, err := s.Verifier.Identify(ctx, bearer)
	if err != nil {
		return answer{}, err
	}
	if err := session.UseLocally(); err != nil {
		return answer{}, err
	}
	ctx, used := record(ctx, session, rt)
	defer used.end()
	// Whatever comes of the call, its token held up and is used up.
	if refusal := allow(ctx, session, rt, c.params); refusal != nil {
		return answer{}, firstError(used.wait(), refusal)
	}
	c.principal = session.Principal
	// A call that changes something waits until its token is known to be new; a read
	// is done beside that, and answers when both are done.
	if rt.method != http.MethodGet {
		if err := used.wait(); err != nil {
			return answer{}, err
		}
	}
	a, err := rt.run(ctx, c)
	if refused := used.wait(); refused != nil {
		return answer{}, refused
	}
	session.Accepted()
	return a, err
}

// workload guards a route against a workload token. It is not recorded as used: a job
// follows its deploy with the one that it has.
func (s *server) workload(ctx context.Context, c *call, rt *route, bearer string) (answer, error) {
	if rt.access.workload == noWorkload {
		return answer{}, s.Verifier.RefuseWorkload()
	}
	// What names no application has no trust policy, so nothing can hold up there.
	application, err := rt.access.names(c.params)
	if err != nil || application == "" {
		return answer{}, s.Verifier.RefuseWorkload()
	}
	if c.principal, err = s.Verifier.Workload(ctx, application, bearer); err != nil {
		return answer{}, err
	}
	if rt.access.workload == refusesWorkload {
		return answer{}, scafo.Errorf(scafo.CodeAuthScope, "a workload token deploys its application and does nothing else")
	}
	s.Verifier.AcceptedWorkload()
	return rt.run(ctx, c)
}

// use is the recording of a token in the bucket, while the call goes on.
type use struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

// record begins to record a token as used. The context that it returns ends when
// that fails: nobody will see what a read under it finds.
func record(ctx context.Context, session *auth.Session, rt *route) (context.Context, *use) {
	ctx, cancel := context.WithCancel(ctx)
	u := &use{cancel: cancel, done: make(chan struct{})}
	if rt.access.localUse {
		close(u.done)
		return ctx, u
	}
	go func() {
		defer close(u.done)
		if u.err = session.Record(ctx); u.err != nil {
			cancel()
		}
	}()
	return ctx, u
}

func (u *use) wait() error {
	<-u.done
	return u.err
}

// end leaves nothing running.
func (u *use) end() {
	u.cancel()
	<-u.done
}

// allow decides whether the caller may use the route, and name the application
// that the call names: which tokens, then whether that is a name, then scope, then
// the tier. Nothing of the application, nor of the request's body, was read yet.
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
	if rt.access.admin != "" && !session.Principal.Admin() {
		return scafo.Errorf(scafo.CodeAuthScope, "%s", rt.access.admin)
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
