package history

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// How often a network of a history does what to a request, and for how long.
const (
	slowly    = 0.25                  // a request that takes its time, on the way there or back
	slowest   = 15 * time.Millisecond // of such a way
	fails     = 0.12                  // a request that does not go as it should
	lateWrite = 60 * time.Millisecond // of a write that arrives when its sender has given it up
	writeKind = 5                     // of faults
	readKinds = 2                     // the first of them strike reads too
)

var errNetwork = errors.New("the network of the test")

// network is what lies between one node and the store: it is slow, it throttles, and
// it loses requests and answers.
type network struct {
	next bucket.Bucket
	calm atomic.Bool // nothing fails
	cut  atomic.Bool // nothing goes through
	// lateness is how late a write arrives that its sender has given up.
	lateness time.Duration

	mu  sync.Mutex
	rng *rand.Rand // guarded by mu

	faults atomic.Int64 // requests that did not go as they should
	lost   atomic.Int64 // writes whose outcome the node was not told
	late   sync.WaitGroup
}

var _ bucket.Bucket = (*network)(nil)

func newNetwork(next bucket.Bucket, seed uint64) *network {
	return &network{next: next, lateness: lateWrite, rng: rand.New(rand.NewPCG(seed, 7))} //nolint:gosec // reproducible on purpose
}

// draw decides on one request: the pauses before and after it, and its fault, 0 for none.
func (n *network) draw(write bool) (there, back time.Duration, fault int) {
	if n.calm.Load() {
		return 0, 0, 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rng.Float64() < slowly {
		there = time.Duration(n.rng.Int64N(int64(slowest)))
	}
	if n.rng.Float64() < slowly {
		back = time.Duration(n.rng.Int64N(int64(slowest)))
	}
	if n.rng.Float64() < fails {
		kinds := readKinds
		if write {
			kinds = writeKind
		}
		fault = 1 + n.rng.IntN(kinds)
	}
	return there, back, fault
}

// through sends one request.
func through[T any](ctx context.Context, n *network, op, key string, write bool, call func(context.Context) (T, error)) (T, error) {
	var none T
	there, back, fault := n.draw(write)
	fail := func(kind error) (T, error) {
		n.faults.Add(1)
		if errors.Is(kind, bucket.ErrUnknown) {
			n.lost.Add(1)
		}
		return none, &bucket.Error{Op: op, Key: key, Kind: kind, Err: errNetwork}
	}
	time.Sleep(there)
	if n.cut.Load() {
		fault = 2
	}
	switch fault {
	case 1: // throttled
		return fail(bucket.ErrUnavailable)
	case 2: // refused by a proxy on the way, or the connection broke before it was sent
		time.Sleep(back)
		return fail(bucket.ErrUnavailable)
	case 3: // the request is lost
		time.Sleep(back)
		return fail(bucket.ErrUnknown)
	case 4: // the answer is lost
		_, _ = call(ctx)
		time.Sleep(back)
		return fail(bucket.ErrUnknown)
	case 5: // the request arrives when nobody waits for it any more
		n.late.Go(func() {
			time.Sleep(n.lateness - back)
			_, _ = call(context.WithoutCancel(ctx))
		})
		return fail(bucket.ErrUnknown)
	}
	v, err := call(ctx)
	time.Sleep(back)
	return v, err
}

func (n *network) Get(ctx context.Context, key string) (*bucket.Object, error) {
	return through(ctx, n, "get", key, false, func(ctx context.Context) (*bucket.Object, error) { return n.next.Get(ctx, key) })
}

func (n *network) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	return through(ctx, n, "get", key, false, func(ctx context.Context) (*bucket.Object, error) { return n.next.GetIfChanged(ctx, key, etag) })
}

func (n *network) Create(ctx context.Context, key string, body []byte) (string, error) {
	return through(ctx, n, "create", key, true, func(ctx context.Context) (string, error) { return n.next.Create(ctx, key, body) })
}

func (n *network) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	return through(ctx, n, "replace", key, true, func(ctx context.Context) (string, error) { return n.next.Replace(ctx, key, etag, body) })
}

func (n *network) Put(ctx context.Context, key string, body []byte) (string, error) {
	return through(ctx, n, "put", key, true, func(ctx context.Context) (string, error) { return n.next.Put(ctx, key, body) })
}

func (n *network) Delete(ctx context.Context, key string) error {
	_, err := through(ctx, n, "delete", key, true, func(ctx context.Context) (struct{}, error) { return struct{}{}, n.next.Delete(ctx, key) })
	return err
}

func (n *network) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	return through(ctx, n, "list", prefix, false, func(ctx context.Context) (bucket.Page, error) { return n.next.List(ctx, prefix, o) })
}
