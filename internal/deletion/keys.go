package deletion

import (
	"context"
	"io"
	"sync"
)

// Keys are the keys that a deletion removes, as it removes them: a page at a time,
// so that nobody holds all of them. The deletion waits for whoever reads, until
// that one closes.
type Keys struct {
	pages chan []string
	left  chan struct{} // closed by Close
	leave sync.Once
	err   error // of the deletion; set before pages is closed
}

func newKeys() *Keys { return &Keys{pages: make(chan []string), left: make(chan struct{})} }

// Next is the next page of keys, in the order of their removal. The error is io.EOF
// when the application is gone, and otherwise why it is not: then some of it may be
// there still, and the deletion goes on by itself.
func (k *Keys) Next(ctx context.Context) ([]string, error) {
	select {
	case page, ok := <-k.pages:
		switch {
		case ok:
			return page, nil
		case k.err != nil:
			return nil, k.err
		}
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close says that nobody reads any more. The deletion goes on without.
func (k *Keys) Close() { k.leave.Do(func() { close(k.left) }) }

// give hands a page over; it is false when nobody reads.
func (k *Keys) give(ctx context.Context, page []string) bool {
	select {
	case k.pages <- page:
		return true
	case <-k.left:
	case <-ctx.Done():
	}
	return false
}

func (k *Keys) end(err error) {
	k.err = err
	close(k.pages)
}
