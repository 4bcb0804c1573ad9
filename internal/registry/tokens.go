package registry

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/meter"
)

// tokenKept is how long the minute of used token ids is kept after it has passed:
// far longer than any token is accepted, whatever clock says so.
const tokenKept = 10 * time.Minute

type usedToken struct {
	scafo.Header
}

// UseToken records that a token id was used. It returns nil once, to the first
// call of the fleet with this id; to all others an auth-invalid error that wraps
// bucket.ErrRefused. When the bucket is away the error is store-unavailable.
func (r *Registry) UseToken(ctx context.Context, exp time.Time, kid, jti string) error {
	ctx = meter.With(ctx, "token")
	key := TokenKey(exp, kid, jti)
	doc := Doc[usedToken]{Key: key}
	body, err := seal(r, &doc)
	if err != nil {
		return err
	}
	what := "recording a token"
	l := loop{r: r, key: key}
	for {
		_, err := r.put(ctx, key, "", body)
		if err == nil {
			return nil
		}
		refused := errors.Is(err, bucket.ErrRefused)
		if refused || errors.Is(err, bucket.ErrUnknown) {
			o, back := get(ctx, r, key, "")
			switch {
			case back == nil:
				// A store or a proxy between may have tried twice: what counts is whose
				// nonce stands there.
				if h, err := headerOf(o.Body); err == nil && h.Write == doc.Value.Write {
					return nil
				}
				return scafo.Wrap(bucket.ErrRefused, scafo.CodeAuthInvalid, "the token was used before")
			case !errors.Is(back, bucket.ErrNotFound):
				return unavailable(back, what)
			}
			// Refused for a concurrent write that then failed, or lost before it
			// happened: try again with the same nonce.
		}
		if err := l.again(ctx, err, doc.Value.Write); err != nil {
			return err
		}
		if l.last != nil {
			return l.last
		}
	}
}

// SweepTokens forgets the token ids whose minute has passed ten minutes ago, by
// this machine's clock and by the store's, whichever is earlier: a clock that runs
// ahead must not make used tokens usable again.
func (r *Registry) SweepTokens(ctx context.Context, now time.Time) error {
	ctx = meter.With(ctx, "token")
	what := "sweeping used tokens"
	page, err := r.b.List(ctx, TokenPrefix, bucket.ListOptions{Delimiter: "/"})
	if err != nil {
		return unavailable(err, what)
	}
	if len(page.Prefixes) == 0 {
		return nil
	}
	d, err := Load[scafo.Fleet](ctx, r, FleetKey)
	if err != nil {
		return err
	}
	if !d.Date.IsZero() && d.Date.Before(now) {
		now = d.Date
	}
	for {
		for _, p := range page.Prefixes {
			minute, err := time.Parse(minuteLayout, strings.TrimSuffix(strings.TrimPrefix(p, TokenPrefix), "/"))
			if err != nil || now.Sub(minute.Add(time.Minute)) < tokenKept {
				continue
			}
			err = bucket.Walk(ctx, r.b, p, func(i bucket.Info) error { return r.b.Delete(ctx, i.Key) })
			if err != nil {
				return unavailable(err, what)
			}
		}
		if page.Next == "" {
			return nil
		}
		if page, err = r.b.List(ctx, TokenPrefix, bucket.ListOptions{Delimiter: "/", After: page.Next}); err != nil {
			return unavailable(err, what)
		}
	}
}
