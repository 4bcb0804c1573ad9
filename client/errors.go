package client

import (
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/problem"
)

// clockHint is how far the clocks must differ before a refused token is blamed on
// them: what nodes tolerate.
const clockHint = 30 * time.Second

// Answer is a refusal as a node gave it. It stands behind every [*scafo.Error]
// that the client returns.
type Answer struct {
	Node       string // host and port of the node, or of what stands before it
	Status     int
	RetryAfter time.Duration // 0 when the answer names none
	Reference  string        // of an internal error, for the node's log
	// Clock is how far the node's clock is ahead of ours, by its Date header, when
	// a token was refused.
	Clock time.Duration
}

func (a *Answer) Error() string {
	s := fmt.Sprintf("%s answered %d", a.Node, a.Status)
	if a.Reference != "" {
		s += ", reference " + a.Reference
	}
	return s
}

// AnswerOf is the node's answer behind an error, if it has one.
func AnswerOf(err error) (*Answer, bool) {
	var a *Answer
	ok := errors.As(err, &a)
	return a, ok
}

// Unreachable is a call that no node answered.
type Unreachable struct {
	URL string
	Err error
	// unsent is true when the node surely did not see the call.
	unsent bool
}

func (u *Unreachable) Error() string { return fmt.Sprintf("cannot reach %s: %v", u.URL, u.Err) }
func (u *Unreachable) Unwrap() error { return u.Err }

func unreachable(base *url.URL, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // its text repeats method and URL
	}
	var op *net.OpError
	return &Unreachable{URL: base.String(), Err: err, unsent: errors.As(err, &op) && op.Op == "dial"}
}

// answer turns a refusal into an error: the problem document's own, or one that
// says what came instead of it.
func (c *Client) answer(base *url.URL, res *http.Response) error {
	a := &Answer{Node: base.Host, Status: res.StatusCode, RetryAfter: retryAfter(res.Header)}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if media != problem.ContentType {
		return &scafo.Error{Code: codeOf(res.StatusCode), Detail: fmt.Sprintf("%s answered %s, not as a scafo node does", base.Host, res.Status), Err: a}
	}
	e, d, ok := problem.Read(res.Body)
	if !ok {
		return &scafo.Error{Code: codeOf(res.StatusCode), Detail: fmt.Sprintf("%s answered %s with a problem document that does not read", base.Host, res.Status), Err: a}
	}
	a.Reference, e.Err = d.Reference, a
	if e.Code == scafo.CodeAuthInvalid {
		if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
			a.Clock = date.Sub(c.now()).Round(time.Second)
			if a.Clock.Abs() > clockHint {
				e.Detail = strings.TrimSpace(fmt.Sprintf("%s The node's clock differs from this machine's by %s, which may be why.", e.Detail, a.Clock.Abs()))
			}
		}
	}
	return e
}

// codeOf is the code for an answer that names none, as a proxy in between gives
// it.
func codeOf(status int) scafo.Code {
	switch status {
	case http.StatusNotFound:
		return scafo.CodeNotFound
	case http.StatusMethodNotAllowed:
		return scafo.CodeMethodNotAllowed
	case http.StatusRequestEntityTooLarge:
		return scafo.CodeResourceLimit
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return scafo.CodeDraining
	}
	return scafo.CodeInternal
}

// retryAfter reads the seconds of a Retry-After; dates, which no node sends, read
// as none.
func retryAfter(h http.Header) time.Duration {
	const most = 3600
	n, err := strconv.Atoi(strings.TrimSpace(h.Get("Retry-After")))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, most)) * time.Second
}
