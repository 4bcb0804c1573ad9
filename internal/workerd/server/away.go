package server

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// What happens while the store is away. workerd has no words of its own for it: a
// request to an object whose write cannot be committed gets the page that an exception
// of the Worker's gets, later ones hang until they are cut, and after its lease it
// leaves. It does say on its log that the store failed.
const (
	// troubleFor is how long after such a line the store counts as away: renewals of
	// the lease fail once a second, or have no answer for a few.
	troubleFor = 5 * time.Second
	// troubleWait is how long an answer waits for a line that was written before it.
	troubleWait = 25 * time.Millisecond
	troubleLook = 5 * time.Millisecond
	// handOver is how long a workerd that drains is waited for while the store is
	// away: it can hand nothing over then, and what was acknowledged is in the store.
	handOver = 5 * time.Second
)

// unreachable reports whether an error says that the store is not there now, which
// passes. A write whose outcome nobody knows is one: what proves the store writes
// under a name of its own each time.
func unreachable(err error) bool {
	return errors.Is(err, bucket.ErrUnavailable) || errors.Is(err, bucket.ErrUnknown)
}

// failurePage is workerd's whole answer to a request that failed within it.
const failurePage = "Internal Server Error"

var errStoreAway = errors.New("the store is away")

// storeAway reports whether workerd said just now that the store failed it.
func (b *backend) storeAway() bool {
	at := b.proc.StoreTrouble()
	return !at.IsZero() && time.Since(at) < troubleFor
}

// blameStore turns workerd's own failure page into an error where the store is to
// blame: who asks is then told to come again.
func (b *backend) blameStore(r *http.Response) error {
	if !b.Suspects(r.StatusCode, r.ContentLength) {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(len(failurePage))+1))
	if err != nil {
		return err
	}
	if err := b.Blames(body); err != nil {
		return err
	}
	rest := r.Body
	r.Body = struct {
		io.Reader
		io.Closer
	}{strings.NewReader(string(body)), rest}
	return nil
}

// Suspects implements relay.Backend: it knows workerd's failure page by its size.
func (b *backend) Suspects(status int, length int64) bool {
	return status == http.StatusInternalServerError && length == int64(len(failurePage)) && (b.durable() || b.standIn)
}

// Blames implements relay.Backend: the store may be to blame for workerd's failure page.
func (b *backend) Blames(body []byte) error {
	if string(body) != failurePage {
		return nil
	}
	for end := time.Now().Add(troubleWait); ; time.Sleep(troubleLook) {
		if b.standIn || b.storeAway() {
			return errStoreAway
		}
		if time.Now().After(end) {
			return nil
		}
	}
}

// cannotHandOver fires once the store was away for so long that waiting for a drain is
// in vain. It ends with done.
func (b *backend) cannotHandOver(done <-chan struct{}) <-chan struct{} {
	out := make(chan struct{})
	if !b.durable() {
		return out
	}
	go func() {
		tick := time.NewTicker(time.Second / 2)
		defer tick.Stop()
		var since time.Time
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			switch {
			case !b.storeAway():
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			case time.Since(since) >= handOver:
				close(out)
				return
			}
		}
	}()
	return out
}
