package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/deletion"
)

// Deletions removes applications, or has the coordinator do it.
type Deletions interface {
	// Delete returns when the keys begin to go, or with the coordinator's answer. What
	// it returns is closed by the caller, whose leaving ends no deletion.
	Delete(ctx context.Context, r deletion.Request) (deletion.Outcome, error)
}

const (
	// heldKeys is how many removed keys are held back before the answer begins: what
	// is smaller is answered when it is done, with the status that it deserves.
	heldKeys = 1024
	// writePatience bounds how long a caller may take to read a part of a streamed
	// answer, so that it cannot hold up the deletion.
	writePatience = 30 * time.Second
	// partBytes is how much of another node's answer is read at once.
	partBytes = 32 << 10
)

// forced reads ?force: nothing but these two counts.
func forced(r *http.Request) bool {
	v := r.URL.Query().Get("force")
	return v == "1" || v == "true"
}

// forwardedFor is who made a request that a node hands on; ok is false for every
// other request. Nodes alone are believed.
func forwardedFor(c *call) (caller string, ok bool) {
	given := c.r.Header.Values(scafo.ForwardedForHeader)
	if c.principal.Kind != auth.KindNode || len(given) == 0 {
		return c.principal.ID, false
	}
	caller = given[0]
	if !scafo.ValidName(caller) {
		caller = c.principal.ID
	}
	return caller, true
}

// mayDelete keeps what an admin has stopped from those who could not start it again:
// the next application of its name would not be blocked.
func (s *server) mayDelete(ctx context.Context, c *call) error {
	if c.principal.Kind != auth.KindOperator || c.principal.Admin() || s.Applications == nil {
		return nil
	}
	a, err := s.Applications.Application(ctx, c.params["name"])
	switch {
	case scafo.CodeOf(err) == scafo.CodeNotFound:
		return nil // that is for the deletion to say
	case err != nil:
		return err
	case a.Blocked != nil && a.Deleting == nil:
		return scafo.Errorf(scafo.CodeApplicationBlocked, "an admin has blocked application %s: an admin may delete it", a.Name)
	}
	return nil
}

// deleteApplication carries on when its caller leaves, so that nothing of it hangs on
// the context of the guard, which ends before the answer is sent.
func (s *server) deleteApplication(_ context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	ctx := c.r.Context()
	if err := s.mayDelete(ctx, c); err != nil {
		return answer{}, err
	}
	req := deletion.Request{Application: c.params["name"], Force: forced(c.r)}
	req.Caller, req.Forwarded = forwardedFor(c)
	o, err := s.Deletions.Delete(ctx, req)
	if err != nil {
		return answer{}, err
	}
	if o.Answer != nil {
		return handedOn(o.Answer), nil
	}
	held := []string{}
	for {
		page, err := o.Keys.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			o.Keys.Close()
			return ok(struct {
				Deleted []string `json:"deleted"`
			}{held})
		case ctx.Err() != nil:
			o.Keys.Close()
			return answer{}, scafo.Wrap(ctx.Err(), scafo.CodeDraining, "the caller left; the deletion goes on")
		case err != nil:
			o.Keys.Close()
			return answer{}, err
		}
		if held = append(held, page...); len(held) > heldKeys {
			return answer{status: http.StatusOK, stream: func(w *streamed) error { return streamKeys(ctx, w, held, o.Keys) }}, nil
		}
	}
}

// streamKeys writes the answer while the keys go. When the deletion fails the answer
// is broken off, which no reader takes for a whole one.
func streamKeys(ctx context.Context, w *streamed, held []string, keys *deletion.Keys) error {
	defer keys.Close()
	begin := `{"deleted":[`
	for {
		for _, k := range held {
			b, err := json.Marshal(k)
			if err != nil {
				return err
			}
			if _, err := w.Write(append([]byte(begin), b...)); err != nil {
				return err
			}
			begin = ","
		}
		if err := w.Flush(); err != nil {
			return err
		}
		var err error
		if held, err = keys.Next(ctx); errors.Is(err, io.EOF) {
			_, err = io.WriteString(w, "]}\n")
			return err
		} else if err != nil {
			return err
		}
	}
}

// handedOn is the answer of the node that a request was handed on to, as it is.
func handedOn(a *deletion.Answer) answer {
	out := answer{status: a.Status, header: http.Header{}, stream: func(w *streamed) error {
		defer a.Body.Close()
		return passOn(w, a.Body)
	}}
	for _, name := range []string{"Content-Type", "Content-Length", "Retry-After", "WWW-Authenticate"} {
		if v := http.Header(a.Header).Values(name); len(v) > 0 {
			out.header[http.CanonicalHeaderKey(name)] = v
		}
	}
	return out
}

// passOn sends what arrives as it arrives.
func passOn(w *streamed, body io.Reader) error {
	part := make([]byte, partBytes)
	for {
		n, err := body.Read(part)
		if n > 0 {
			if _, err := w.Write(part[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
}

// streamed is an answer that is sent in parts, each of which is given its time.
type streamed struct {
	w io.Writer
	c *http.ResponseController
}

func (s *streamed) Write(p []byte) (int, error) {
	_ = s.c.SetWriteDeadline(time.Now().Add(writePatience)) // where there is none, the caller's leaving is the bound
	return s.w.Write(p)
}

// Flush sends what was written.
func (s *streamed) Flush() error {
	if err := s.c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
