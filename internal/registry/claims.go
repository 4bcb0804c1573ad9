package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/mistake"
)

// How claims exclude each other. A claim is written as pending first, and only then
// are the claims looked at that would exclude it: of two that race, at least one sees
// the other. It is held after that, then listed by its application, and then it is
// looked at once more: a claim and a release of the same host meet in two documents,
// and each of them looks at the other's after it has written its own. Whoever takes
// back what nobody lists marks the claim as doubted before it reads the list, so that
// it and a claimant see each other in the same way.
//
// Every write of a claim is a compare-and-swap over the one that was read. Whoever
// finds a document moved begins again from the start, which is also what a repeated
// call does after a crash.

// claimTimeout bounds a claim or a release. It does not end with the call that asked:
// what was begun is better completed than left for the coordinator.
const claimTimeout = 30 * time.Second

// errClaimMoved says that a claim, or an application, is not any more as this try
// read it.
var errClaimMoved = errors.New("the claim changed meanwhile")

// Relation is how a claim stands to the host that was asked for.
type Relation int

// The claims that exclude another one.
const (
	SameHost   Relation = iota
	ParentHost          // it covers the subdomains of the host above
	ChildHost           // it is one label under the host asked for with its subdomains
)

// HeldError is the cause of a reference-held of a claim: who holds what. The refusal
// around it names neither, since the caller may not be meant to know.
type HeldError struct {
	Asked       string // the host that was asked for
	Host        string // the one that is held
	Relation    Relation
	Application string
	Pending     bool // it is not held yet
}

func (e *HeldError) Error() string { return e.Detail(e.Application) }

// Detail says what is held; holder is the application to name, or empty.
func (e *HeldError) Detail(holder string) string {
	by, verb := "another application of this installation", "held"
	if holder != "" {
		by = "the application " + holder
	}
	if e.Pending {
		verb = "being claimed"
	}
	switch {
	case e.Relation == ParentHost:
		return fmt.Sprintf("%s is %s with its subdomains by %s", e.Host, verb, by)
	case e.Relation == ChildHost && holder == "":
		return fmt.Sprintf("a host one label under %s is %s by %s", e.Asked, verb, by)
	}
	return fmt.Sprintf("%s is %s by %s", e.Host, verb, by)
}

// finish is the context of what is completed once it was begun; it does not begin for
// a caller who has gone already.
func finish(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, unavailable(err, "a claim")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	return ctx, cancel, nil
}

// retry has try act, again from the start as often as something moved meanwhile.
func (r *Registry) retry(ctx context.Context, key string, try func() error) error {
	l := loop{r: r, key: key}
	for {
		err := try()
		if !errors.Is(err, errClaimMoved) {
			return err
		}
		if err := l.again(ctx, fmt.Errorf("%w: %w", bucket.ErrRefused, err), ""); err != nil {
			return err
		}
	}
}

// claim is one call of ClaimDomain.
type claim struct {
	r          *Registry
	name, host string
	wildcard   bool
	touched    []string // keys of other claims that were written
	changed    bool     // the list was written
	lists      bool     // by some try of this call, or as it was last read
}

// ClaimDomain gives an application a host, and the hosts one label under it where
// wildcard is set. A host that it has is no change, and a claim that covers its
// subdomains goes on to do so when wildcard is not set. The host is a parsed one.
//
// The refusals: not-found, application-deleting, application-blocked, invalid-input
// for a domain more than an application may hold, and reference-held, with a
// [HeldError] in its chain, where another application holds what was asked for.
// changed says whether anything was written, also beside an error.
func (r *Registry) ClaimDomain(ctx context.Context, name, host string, wildcard bool) (app scafo.Application, changed bool, err error) {
	ctx, cancel, err := finish(ctx)
	if err != nil {
		return app, false, err
	}
	defer cancel()
	c := &claim{r: r, name: name, host: host, wildcard: wildcard}
	err = r.retry(ctx, ClaimKey(host), func() (err error) {
		app, err = c.try(ctx)
		return err
	})
	if err != nil {
		if refused(err) && (c.lists || listed(app, host) >= 0) {
			c.unlist(ctx, app.UID)
		}
		if len(c.touched) > 0 {
			r.announceSoon(ctx, c.touched...)
		}
		return app, c.changed, err
	}
	// A repeated call announces again: whoever made the change may have died before.
	return app, c.changed, r.Announce(ctx, append(c.touched, ClaimKey(host), ApplicationKey(name))...)
}

// mayClaim decides whether an application may come by a host.
func mayClaim(app scafo.Application, host string) error {
	switch {
	case app.Deleting != nil:
		return errDeleting(app.Name)
	case app.Blocked != nil:
		return scafo.Errorf(scafo.CodeApplicationBlocked, "application %s is blocked: it can release its domains and claim none", app.Name)
	case listed(app, host) < 0 && len(app.Domains) >= scafo.MaxDomains:
		return scafo.Errorf(scafo.CodeInvalidInput, "application %s already holds %d domains, which is the most", app.Name, scafo.MaxDomains)
	}
	return nil
}

// listed is where an application lists a host, or -1.
func listed(app scafo.Application, host string) int {
	return slices.IndexFunc(app.Domains, func(d scafo.Domain) bool { return d.Host == host })
}

// listsMore reports whether an application lists subdomains of a host that the claim
// does not cover, nor is about to.
func listsMore(app scafo.Application, c scafo.Claim) bool {
	i := listed(app, c.Host)
	return i >= 0 && app.Domains[i].Wildcard && !c.Covers()
}

// try is one claim from the start.
func (c *claim) try(ctx context.Context) (scafo.Application, error) {
	app, err := c.r.ApplicationDoc(ctx, c.name)
	if err != nil {
		return app.Value, err
	}
	if err := mayClaim(app.Value, c.host); err != nil {
		return app.Value, err
	}
	d, err := Load[scafo.Claim](ctx, c.r, ClaimKey(c.host))
	if err != nil {
		return app.Value, err
	}
	mine := d.Exists && d.Value.Of(c.name, app.Value.UID)
	if d.Exists && d.Value.Active() && !mine {
		if err := c.exclude(ctx, d, SameHost, app.Value); err != nil {
			return app.Value, err
		}
		return app.Value, errClaimMoved // it is free now
	}
	wrote := true
	switch held := mine && d.Value.State == scafo.ClaimHeld; {
	case !held || c.wildcard && !d.Value.Wildcard:
		d, err = c.take(ctx, d, &app)
	case d.Value.Doubted:
		d, err = c.write(ctx, d, func(*scafo.Claim) {})
	default:
		wrote = false
	}
	if err != nil {
		return app.Value, err
	}
	if mistake.Made(mistake.ClaimNotListed) {
		return app.Value, nil
	}
	listed, err := c.list(ctx, &app, d.Value, wrote)
	c.changed, c.lists = c.changed || listed, c.lists || listed
	switch {
	case err != nil && wrote && refused(err):
		c.takeBack(ctx, d)
		return app.Value, err
	case err != nil:
		return app.Value, err
	case listsMore(app.Value, d.Value):
		// Somebody listed the subdomains for a claim that was released meanwhile, and did
		// not get to see that.
		if _, err := c.r.SettleListing(ctx, c.name, d.Value.UID, c.host); err != nil {
			return app.Value, err
		}
		return app.Value, errClaimMoved
	case !listed:
		return app.Value, nil // nothing was written: the claim was read just now
	}
	return app.Value, c.look(ctx, d)
}

// refused reports whether an error is a decision, after which a claim is taken back.
// What failed, or moved, is tried again.
func refused(err error) bool {
	return !errors.Is(err, errClaimMoved) && scafo.CodeOf(err) != scafo.CodeStoreUnavailable && scafo.CodeOf(err) != scafo.CodeInternal
}

// take makes a claim that is none yet, or covers less than was asked for, a held one.
func (c *claim) take(ctx context.Context, d Doc[scafo.Claim], app *Doc[scafo.Application]) (Doc[scafo.Claim], error) {
	uid := app.Value.UID
	d, err := c.write(ctx, d, func(v *scafo.Claim) {
		if v.State == scafo.ClaimHeld && v.Of(c.name, uid) {
			v.PendingWildcard = true // it is held all the while
			return
		}
		*v = scafo.Claim{
			Header: v.Header, Host: c.host, Application: c.name, UID: uid,
			Wildcard: c.wildcard, State: scafo.ClaimPending, At: c.r.Now(),
		}
	})
	if err != nil {
		return d, err
	}
	if err := c.others(ctx, d.Value, app); err != nil && !mistake.Made(mistake.ClaimWithoutLook) {
		if refused(err) {
			c.giveUp(ctx, d)
		}
		return d, err
	}
	return c.write(ctx, d, func(v *scafo.Claim) {
		v.State, v.PendingWildcard = scafo.ClaimHeld, false
		v.Wildcard = v.Wildcard || c.wildcard
	})
}

// write changes the claim that was read, or written; errClaimMoved when it is another
// one by now.
func (c *claim) write(ctx context.Context, d Doc[scafo.Claim], change func(*scafo.Claim)) (Doc[scafo.Claim], error) {
	return c.r.moveClaim(ctx, d, change)
}

// moveClaim changes a claim that was read; errClaimMoved when it is another one by
// now. Whatever is written is not doubted any more, unless the change says so.
func (r *Registry) moveClaim(ctx context.Context, d Doc[scafo.Claim], change func(*scafo.Claim)) (Doc[scafo.Claim], error) {
	etag := d.ETag
	return updateFrom(ctx, r, &d, d.Key, func(d *Doc[scafo.Claim]) error {
		if d.ETag != etag {
			return errClaimMoved
		}
		d.Value.Doubted = false
		change(&d.Value)
		return nil
	})
}

// others looks at everything that could exclude a claim which stands as pending. The
// fleet is told of it meanwhile, so that it is found if nobody completes it.
func (c *claim) others(ctx context.Context, want scafo.Claim, app *Doc[scafo.Application]) error {
	var now Doc[scafo.Application]
	var parent Doc[scafo.Claim]
	var children []Doc[scafo.Claim]
	c.r.announceSoon(ctx, ClaimKey(c.host))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		now, err = Reload(gctx, c.r, *app)
		return err
	})
	if host, ok := scafo.ParentHost(c.host); ok {
		g.Go(func() (err error) {
			parent, err = Load[scafo.Claim](gctx, c.r, ClaimKey(host))
			return err
		})
	}
	if want.Covers() {
		g.Go(func() (err error) {
			children, err = c.r.claimsBelow(gctx, c.host, want.Conflicts)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !now.Exists || now.Value.UID != want.UID {
		return errClaimMoved
	}
	*app = now
	if err := mayClaim(now.Value, c.host); err != nil {
		return err
	}
	if parent.Exists && want.Conflicts(parent.Value) {
		if err := c.exclude(ctx, parent, ParentHost, now.Value); err != nil {
			return err
		}
	}
	for _, d := range children {
		if err := c.exclude(ctx, d, ChildHost, now.Value); err != nil {
			return err
		}
	}
	return nil
}

// claimsBelow are the claims of hosts one label under a host that match, in the order
// of keys.
func (r *Registry) claimsBelow(ctx context.Context, host string, match func(scafo.Claim) bool) ([]Doc[scafo.Claim], error) {
	prefix := ClaimChildrenPrefix(host)
	var out []Doc[scafo.Claim]
	o := bucket.ListOptions{Delimiter: "/"} // what lies deeper is no label under it
	for {
		page, err := r.b.List(ctx, prefix, o)
		if err != nil {
			return nil, unavailable(err, "listing "+prefix)
		}
		docs := make([]Doc[scafo.Claim], len(page.Objects))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(readers)
		for i, info := range page.Objects {
			g.Go(func() (err error) {
				// One that cannot be read may be anybody's: it is not passed over.
				docs[i], err = Load[scafo.Claim](gctx, r, info.Key)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		for _, d := range docs {
			if d.Exists && match(d.Value) {
				out = append(out, d)
			}
		}
		if page.Next == "" {
			return out, nil
		}
		o.After = page.Next
	}
}

// exclude refuses a claim because of another one. It returns nil when that was of a
// life of an application that is over: it is released then.
func (c *claim) exclude(ctx context.Context, d Doc[scafo.Claim], rel Relation, app scafo.Application) error {
	other := d.Value
	over := other.Application == c.name && other.UID != app.UID
	if !over && other.Application != c.name {
		a, err := Load[scafo.Application](ctx, c.r, ApplicationKey(other.Application))
		if err != nil {
			return err
		}
		// A uid is of one life, and never comes back.
		over = !a.Exists || a.Value.UID != other.UID
	}
	if !over {
		e := &HeldError{Asked: c.host, Host: other.Host, Relation: rel, Application: other.Application, Pending: other.State == scafo.ClaimPending}
		return scafo.Wrap(e, scafo.CodeReferenceHeld, "%s", e.Detail(""))
	}
	if _, err := c.r.moveClaim(ctx, d, release); err != nil {
		return err
	}
	c.touched = append(c.touched, d.Key)
	return nil
}

func release(v *scafo.Claim) { v.State, v.PendingWildcard = scafo.ClaimReleased, false }

// giveUp takes back a claim that was refused before it was held. When it moved, it is
// somebody else's by now. A failure is none of the refusal: the coordinator releases
// what stays.
func (c *claim) giveUp(ctx context.Context, d Doc[scafo.Claim]) {
	_, err := c.write(ctx, d, func(v *scafo.Claim) {
		if v.State == scafo.ClaimPending {
			release(v)
		}
		v.PendingWildcard = false
	})
	c.left(err)
}

// takeBack takes back a claim that is held and that the application does not list.
func (c *claim) takeBack(ctx context.Context, d Doc[scafo.Claim]) {
	_, err := c.r.settleClaim(ctx, d)
	c.left(err)
}

// unlist takes out what a call listed before it was refused: its claim was released
// meanwhile, and a later try of the same call lost the host.
func (c *claim) unlist(ctx context.Context, uid string) {
	err := c.r.retry(ctx, ApplicationKey(c.name), func() error {
		unlisted, err := c.r.settleListing(ctx, c.name, uid, c.host)
		if unlisted {
			c.touched = append(c.touched, ApplicationKey(c.name))
		}
		return err
	})
	if err != nil {
		c.r.log.Warn("a host that was refused is still listed; the coordinator will take it out", "host", c.host, "application", c.name, "err", err)
	}
}

func (c *claim) left(err error) {
	c.touched = append(c.touched, ClaimKey(c.host))
	if err != nil && !errors.Is(err, errClaimMoved) {
		c.r.log.Warn("a claim that was refused could not be taken back; the coordinator will", "host", c.host, "application", c.name, "err", err)
	}
}

// list has the application list the host as the claim says. An entry is never made to
// cover less: another call may have widened the claim since it was read. Who wrote the
// claim writes the list too, so that whoever takes an entry out that has no claim
// cannot miss that it has one now.
func (c *claim) list(ctx context.Context, app *Doc[scafo.Application], held scafo.Claim, wrote bool) (written bool, err error) {
	uid := held.UID
	base := *app
	d, err := updateFrom(ctx, c.r, &base, ApplicationKey(c.name), func(d *Doc[scafo.Application]) error {
		written = false
		if !d.Exists || d.Value.UID != uid {
			return errClaimMoved
		}
		if err := mayClaim(d.Value, c.host); err != nil {
			return err
		}
		d.Value.Domains = slices.Clone(d.Value.Domains)
		i := listed(d.Value, c.host)
		switch {
		case i < 0:
			d.Value.Domains = append(d.Value.Domains, scafo.Domain{Host: c.host, Wildcard: held.Wildcard})
		case held.Wildcard && !d.Value.Domains[i].Wildcard:
			d.Value.Domains[i].Wildcard = true
		case !wrote:
			return ErrKeep
		}
		written = true
		return nil
	})
	if err != nil {
		return false, err
	}
	*app = d
	return written, nil
}

// look looks at the claim once more, after the application listed it.
func (c *claim) look(ctx context.Context, d Doc[scafo.Claim]) error {
	now, err := Reload(ctx, c.r, d)
	if err != nil {
		return err
	}
	v := now.Value
	if !now.Exists || v.State != scafo.ClaimHeld || !v.Of(c.name, d.Value.UID) || v.Doubted || d.Value.Wildcard && !v.Wildcard {
		return errClaimMoved
	}
	return nil
}
