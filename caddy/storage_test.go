package caddy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/storage"
)

// fleetStore is the storage of a fleet: real handlers over a bucket in memory.
type fleetStore struct {
	store *fault.Store
}

func newFleetStore() *fleetStore {
	return &fleetStore{store: fault.New(memory.New(memory.Files()))}
}

// handler is the API of one more node.
func (f *fleetStore) handler(t *testing.T) http.Handler {
	t.Helper()
	r := registry.New(f.store, registry.Options{})
	h, err := api.New(api.Deps{
		Node: "node-a", Log: slog.New(slog.DiscardHandler), Storage: storage.New(r, storage.Options{}),
		Verifier: auth.New(r, auth.Options{IngressTokens: []string{token}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// wire is a way to the nodes without a network, so that virtual time works. A host
// without a handler refuses the connection.
type wire struct {
	mu    sync.Mutex
	nodes map[string]http.Handler
	asked map[string]int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	if w.asked == nil {
		w.asked = map[string]int{}
	}
	w.asked[r.URL.Host]++
	h := w.nodes[r.URL.Host]
	w.mu.Unlock()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if h == nil {
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Result(), nil
}

func (w *wire) set(host string, h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[host] = h
}

// ingressStorage is the storage of one ingress, which asks the nodes a and b.
func ingressStorage(t *testing.T, w *wire, secrets ...string) *sharedStorage {
	t.Helper()
	sealer, err := newSealer(secrets)
	if err != nil {
		t.Fatal(err)
	}
	c := newStorageClient([]string{"http://a", "http://b"}, token)
	c.http.Transport = w
	return &sharedStorage{nodes: c, sealer: sealer, lease: defaultLockLease, log: zap.NewNop(), locks: locks{held: map[string][]*heldLock{}}}
}

func newWire(t *testing.T, f *fleetStore) *wire {
	t.Helper()
	return &wire{nodes: map[string]http.Handler{"a": f.handler(t), "b": f.handler(t)}}
}

func wantMissing(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want fs.ErrNotExist", what, err)
	}
}

// storageContract is what certmagic asks of a storage.
func storageContract(t *testing.T, s certmagic.Storage) {
	ctx := t.Context()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := s.Load(ctx, "none")
	wantMissing(t, "loading nothing", err)
	_, err = s.Stat(ctx, "none")
	wantMissing(t, "stat of nothing", err)
	_, err = s.List(ctx, "none", true)
	wantMissing(t, "listing nothing", err)
	_, err = s.List(ctx, "none", false)
	wantMissing(t, "listing nothing flatly", err)
	check("deleting nothing", s.Delete(ctx, "none"))
	if s.Exists(ctx, "none") {
		t.Error("nothing exists")
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", "../a", "a/./b"} {
		if s.Store(ctx, bad, []byte("x")) == nil {
			t.Errorf("%q is taken for a key", bad)
		}
		if _, err := s.Load(ctx, bad); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("loading %q: %v", bad, err)
		}
	}
	values := map[string][]byte{"d/one": []byte("1"), "d/deep/er/two": {0, 0xff, '\n'}, "d/deep/three": {}, "dd/x": nil, "d": []byte("beside its children"), "with space/?#%+&": []byte("odd")}
	for k, v := range values {
		check("storing "+k, s.Store(ctx, k, []byte("first")))
		check("storing "+k, s.Store(ctx, k, v))
	}
	for k, v := range values {
		got, err := s.Load(ctx, k)
		check("loading "+k, err)
		if !bytes.Equal(got, v) {
			t.Errorf("%s is %q, want %q", k, got, v)
		}
		st, err := s.Stat(ctx, k)
		check("stat of "+k, err)
		if st.Key != k || st.Size != int64(len(v)) || !st.IsTerminal || st.Modified.IsZero() {
			t.Errorf("stat of %s: %+v", k, st)
		}
	}
	st, err := s.Stat(ctx, "d/deep")
	check("stat of a directory", err)
	if st.IsTerminal || st.Key != "d/deep" || !s.Exists(ctx, "d/deep") {
		t.Errorf("a directory: %+v", st)
	}
	list := func(prefix string, recursive bool, want ...string) {
		t.Helper()
		got, err := s.List(ctx, prefix, recursive)
		check("listing "+prefix, err)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q, recursive %v: %v, want %v", prefix, recursive, got, want)
		}
	}
	list("d", false, "d/deep", "d/one")
	list("d", true, "d/deep", "d/deep/er", "d/deep/er/two", "d/deep/three", "d/one")
	list("d/deep", true, "d/deep/er", "d/deep/er/two", "d/deep/three")
	list("", false, "d", "dd", "with space")
	check("deleting a directory", s.Delete(ctx, "d"))
	_, err = s.Load(ctx, "d/deep/three")
	wantMissing(t, "a child of what was deleted", err)
	list("", true, "dd", "dd/x", "with space", "with space/?#%+&")

	if s.Unlock(ctx, "l") == nil {
		t.Error("a lock that nobody has is unlocked")
	}
	check("locking", s.Lock(ctx, "l"))
	check("unlocking", s.Unlock(ctx, "l"))
	if s.Unlock(ctx, "l") == nil {
		t.Error("a lock is unlocked twice")
	}
}

func TestStorageContract(t *testing.T) {
	for name, secrets := range map[string][]string{"plain": nil, "encrypted": {"correct horse battery"}} {
		t.Run(name, func(t *testing.T) {
			storageContract(t, ingressStorage(t, newWire(t, newFleetStore()), secrets...))
		})
	}
}

func TestStorageFailsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetStore()
		w := newWire(t, f)
		s := ingressStorage(t, w)
		if err := s.Store(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		good := f.handler(t)
		say := func(status int, kind, body string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			})
		}
		// A node without a storage, as every fleet has them that did not upgrade yet.
		bare, err := api.New(api.Deps{Node: "old", Log: slog.New(slog.DiscardHandler), Verifier: auth.New(registry.New(memory.New(), registry.Options{}), auth.Options{IngressTokens: []string{token}})})
		if err != nil {
			t.Fatal(err)
		}
		for name, bad := range map[string]http.Handler{
			"dead":            nil,
			"away":            say(503, "application/problem+json", `{"code":"store-unavailable","status":503}`),
			"refuses":         say(401, "application/problem+json", `{"code":"auth-invalid","status":401}`),
			"proxy":           say(502, "text/html", "<html>"),
			"not found page":  say(404, "text/html", "<html>"),
			"plain not found": say(404, "text/plain", "404 page not found\n"),
			"any page":        say(200, "text/html", "<html>welcome"),
			"other API":       say(404, "application/problem+json", `{"title":"Not found"}`),
			"redirect":        say(302, "text/html", ""),
			"no storage":      bare,
		} {
			w.set("a", bad)
			s := ingressStorage(t, w)
			if got, err := s.Load(t.Context(), "k"); err != nil || string(got) != "v" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			s = ingressStorage(t, w)
			_, err := s.Load(t.Context(), "none")
			wantMissing(t, name, err)
			if err := s.Store(t.Context(), "n/"+strings.ReplaceAll(name, " ", "-"), nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			// With such nodes alone nothing may read as a key that is not there.
			w.set("b", bad)
			for what, err := range everythingOf(t.Context(), ingressStorage(t, w)) {
				if err == nil || errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s alone: %s: %v", name, what, err)
				}
			}
			w.set("b", good)
		}
		w.set("a", good)
		w.asked = nil
		for range 5 {
			if _, err := s.Load(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		if w.asked["a"]+w.asked["b"] != 5 {
			t.Errorf("five loads asked %v", w.asked)
		}
	})
}

func everythingOf(ctx context.Context, s *sharedStorage) map[string]error {
	_, load := s.Load(ctx, "k")
	_, stat := s.Stat(ctx, "k")
	_, list := s.List(ctx, "n", true)
	_, try := s.TryLock(ctx, "l")
	exists := errors.New("taken for there, since nobody knows")
	if !s.Exists(ctx, "k") {
		exists = fs.ErrNotExist
	}
	return map[string]error{
		"load": load, "stat": stat, "list": list, "store": s.Store(ctx, "k", nil), "delete": s.Delete(ctx, "k"), "try": try, "exists": exists,
	}
}

// A bucket that is away never reads as a certificate that is not there.
func TestStorageWhileTheBucketIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetStore()
		s := ingressStorage(t, newWire(t, f))
		if err := s.Store(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		f.store.SetDown(true)
		for what, err := range everythingOf(t.Context(), s) {
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// It comes back while a call is waiting.
		time.AfterFunc(time.Second/2, func() { f.store.SetDown(false) })
		if got, err := s.Load(t.Context(), "k"); err != nil || string(got) != "v" {
			t.Errorf("%q, %v", got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Load(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestTwentyLockersOnTwoIngresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, newFleetStore())
		ingresses := []*sharedStorage{ingressStorage(t, w), ingressStorage(t, w)}
		var inside, turns atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				s := ingresses[i%2]
				if err := s.Lock(t.Context(), "issue/example.com"); err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two are inside")
				}
				time.Sleep(90 * time.Second) // longer than the lease
				inside.Add(-1)
				turns.Add(1)
				if err := s.Unlock(t.Context(), "issue/example.com"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if turns.Load() != 20 {
			t.Errorf("%d of 20 had their turn", turns.Load())
		}
	})
}

// crash ends what an ingress does for its locks, without giving them back.
func crash(s *sharedStorage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.held {
		for _, h := range all {
			close(h.stop)
		}
	}
	s.held = map[string][]*heldLock{}
}

func TestAHolderThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, newFleetStore())
		one, two := ingressStorage(t, w), ingressStorage(t, w)
		if err := one.Lock(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // it is renewed all the time
		if ok, err := two.TryLock(t.Context(), "l"); ok || err != nil {
			t.Fatalf("while the holder lives: %v, %v", ok, err)
		}
		crash(one)
		died := time.Now()
		if err := two.Lock(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(died); waited > defaultLockLease+5*time.Second || waited < defaultLockLease-defaultLockLease/3-time.Second {
			t.Errorf("the next one waited %v", waited)
		}
		if err := two.Unlock(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
	})
}

// A holder that was cut off past its lease frees nobody else's lock, and knows that
// it lost its own.
func TestAHolderThatComesBack(t *testing.T) {
	for _, released := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleetStore()
			cut, w := newWire(t, f), newWire(t, f)
			one, two, three := ingressStorage(t, cut), ingressStorage(t, w), ingressStorage(t, w)
			if err := one.Lock(t.Context(), "l"); err != nil {
				t.Fatal(err)
			}
			a, b := cut.nodes["a"], cut.nodes["b"]
			cut.set("a", nil)
			cut.set("b", nil)
			if err := two.Lock(t.Context(), "l"); err != nil {
				t.Fatal(err)
			}
			if released {
				if err := two.Unlock(t.Context(), "l"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Minute)
			cut.set("a", a)
			cut.set("b", b)
			time.Sleep(time.Minute)
			if err := one.RenewLockLease(t.Context(), "l", time.Hour); err == nil {
				t.Error("a lost lock is renewed")
			}
			if err := one.Unlock(t.Context(), "l"); err != nil {
				t.Errorf("unlocking what was lost: %v", err)
			}
			if ok, err := three.TryLock(t.Context(), "l"); ok != released || err != nil {
				t.Errorf("a third one has it: %v, %v", ok, err)
			}
			for _, s := range []*sharedStorage{two, three} {
				_ = s.Unlock(t.Context(), "l") // only one of them has it
			}
		})
	}
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, newFleetStore())
		one, two := ingressStorage(t, w), ingressStorage(t, w)
		if err := one.Lock(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := two.Lock(ctx, "l"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if err := one.RenewLockLease(t.Context(), "l", time.Hour); err != nil {
			t.Error(err)
		}
		// Unlocking works although whoever had the lock was told to stop.
		if err := one.Unlock(ctx, "l"); err != nil {
			t.Error(err)
		}
		if ok, err := two.TryLock(t.Context(), "l"); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		if err := two.Unlock(t.Context(), "l"); err != nil {
			t.Error(err)
		}
		if err := two.RenewLockLease(t.Context(), "l", time.Hour); err == nil {
			t.Error("a lock that was given back is renewed")
		}
	})
}

// A lock that was granted although its answer was lost is found again by whoever
// asked for it, and blocks nobody when the asking is given up.
func TestALostGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetStore()
		w := newWire(t, f)
		s := ingressStorage(t, w)
		real := w.nodes["a"]
		lose := 1
		w.set("a", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if lose > 0 && r.Method == http.MethodPost {
				lose--
				real.ServeHTTP(httptest.NewRecorder(), r)
				rw.WriteHeader(http.StatusBadGateway)
				return
			}
			real.ServeHTTP(rw, r)
		}))
		if ok, err := s.TryLock(t.Context(), "l"); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		if err := s.Unlock(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
		lose = 100
		w.set("b", nil)
		if ok, err := s.TryLock(t.Context(), "l"); ok || err == nil {
			t.Fatalf("%v, %v", ok, err)
		}
		lose = 0
		next := ingressStorage(t, w)
		if ok, err := next.TryLock(t.Context(), "l"); !ok || err != nil {
			t.Errorf("what was given up is in the way: %v, %v", ok, err)
		}
		if err := next.Unlock(t.Context(), "l"); err != nil {
			t.Error(err)
		}
	})
}

func TestEncryption(t *testing.T) {
	f := newFleetStore()
	w := newWire(t, f)
	plain, old, rotated := ingressStorage(t, w), ingressStorage(t, w, "the first secret of all"), ingressStorage(t, w, "the second secret of all", "the first secret of all")
	secret := []byte("-----BEGIN EC PRIVATE KEY-----")
	store := func(s *sharedStorage, key string) {
		t.Helper()
		if err := s.Store(t.Context(), key, secret); err != nil {
			t.Fatal(err)
		}
	}
	store(plain, "plain")
	store(old, "old")
	store(rotated, "new")
	for key, readers := range map[string][]*sharedStorage{"plain": {plain, old, rotated}, "old": {old, rotated}, "new": {rotated}} {
		for _, s := range []*sharedStorage{plain, old, rotated} {
			got, err := s.Load(t.Context(), key)
			can := slices.Contains(readers, s)
			if can && (err != nil || !bytes.Equal(got, secret)) || !can && (err == nil || errors.Is(err, fs.ErrNotExist)) {
				t.Errorf("%s: %q, %v; readable %v", key, got, err, can)
			}
		}
	}
	raw := func(key string) []byte {
		t.Helper()
		got, err := plain.nodes.do(t.Context(), call{method: http.MethodGet, path: objectPath(key), kind: bytesKind})
		if err != nil {
			t.Fatal(err)
		}
		return got.body
	}
	if bytes.Contains(raw("old"), secret) {
		t.Error("the secret is in the bucket")
	}
	// A value put in the place of another one, and one that was changed, do not open.
	moved := raw("old")
	damaged := bytes.Clone(moved)
	damaged[len(damaged)-1] ^= 1
	for key, body := range map[string][]byte{"moved": moved, "old": damaged, "short": sealed} {
		if err := plain.Store(t.Context(), key, body); err != nil {
			t.Fatal(err)
		}
		if got, err := old.Load(t.Context(), key); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s opens as %q, %v", key, got, err)
		}
	}
}

func TestManyKeys(t *testing.T) {
	f := &fleetStore{store: fault.New(memory.New())}
	s := ingressStorage(t, newWire(t, f))
	const sites = 3400
	for i := range sites {
		for _, kind := range []string{"crt", "key", "json"} {
			if err := s.Store(t.Context(), fmt.Sprintf("certificates/ca/site-%04d/site-%04d.%s", i, i, kind), []byte(kind)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := s.List(t.Context(), "certificates/ca", false); err != nil || len(got) != sites {
		t.Errorf("%d sites, %v", len(got), err)
	}
	if got, err := s.List(t.Context(), "", true); err != nil || len(got) != 4*sites+2 {
		t.Errorf("%d keys and directories, %v", len(got), err)
	}
}

func TestStorageConfiguration(t *testing.T) {
	adapter := caddyconfig.GetAdapter("caddyfile")
	b, warnings, err := adapter.Adapt([]byte(`{
	storage scafo {
		node http://10.0.0.1:7420 http://10.0.0.2:7420
		node http://10.0.0.3:7420
		token {env.SCAFO_INGRESS_TOKEN}
		encryption_key {file./etc/scafo/storage.key} older-secret
		lock_lease 30s
	}
}
`), nil)
	if err != nil {
		t.Fatal(err, warnings)
	}
	want := `"storage":{"encryption_keys":["{file./etc/scafo/storage.key}","older-secret"],"lock_lease":30000000000,"module":"scafo","nodes":["http://10.0.0.1:7420","http://10.0.0.2:7420","http://10.0.0.3:7420"],"token":"{env.SCAFO_INGRESS_TOKEN}"}`
	if !strings.Contains(string(b), want) {
		t.Errorf("%s\nlacks %s", b, want)
	}
	for _, bad := range []string{"storage scafo {\n nod http://x\n }", "storage scafo x", "storage scafo {\n node\n }", "storage scafo {\n lock_lease soon\n }", "storage scafo {\n token\n }", "storage scafo {\n encryption_key\n }"} {
		if _, _, err := adapter.Adapt([]byte("{\n"+bad+"\n}"), nil); err == nil {
			t.Errorf("taken: %s", bad)
		}
	}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	good := Storage{Nodes: []string{"http://10.0.0.1:7420/"}, Token: "t"}
	if err := good.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCAFO_TEST_TOKEN", "from the environment")
	placed := Storage{Nodes: []string{"http://x"}, Token: "{env.SCAFO_TEST_TOKEN}"}
	if err := placed.Provision(ctx); err != nil || placed.shared.nodes.token != "from the environment" {
		t.Errorf("%v", err)
	}
	for name, s := range map[string]Storage{
		"no node": {Token: "t"}, "no URL": {Nodes: []string{"10.0.0.1"}, Token: "t"}, "no token": {Nodes: good.Nodes},
		"empty token": {Nodes: good.Nodes, Token: "{env.SCAFO_NOT_SET}"},
		"short key":   {Nodes: good.Nodes, Token: "t", EncryptionKeys: []string{"short"}},
		"short lease": {Nodes: good.Nodes, Token: "t", LockLease: caddy.Duration(time.Second)},
	} {
		if err := s.Provision(ctx); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	shared, err := good.CertMagicStorage()
	if err != nil {
		t.Fatal(err)
	}
	if said := fmt.Sprintf("%v", shared); said != "scafo:http://10.0.0.1:7420" {
		t.Errorf("in a log it is %s", said)
	}
}

// What is written outlasts the restart of a node; what is read says soon that it
// cannot be had.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetStore()
		w := newWire(t, f)
		s := ingressStorage(t, w)
		good := w.nodes["a"]
		w.set("a", nil)
		w.set("b", nil)
		began := time.Now()
		if _, err := s.Load(t.Context(), "k"); err == nil || time.Since(began) > readPatience {
			t.Errorf("a read: %v after %v", err, time.Since(began))
		}
		time.AfterFunc(20*time.Second, func() { w.set("b", good) })
		if err := s.Store(t.Context(), "k", []byte("v")); err != nil {
			t.Errorf("a write: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.set("b", nil)
		began = time.Now()
		if err := s.Store(ctx, "k", nil); err == nil || time.Since(began) > time.Second {
			t.Errorf("a write whose time is over: %v after %v", err, time.Since(began))
		}
	})
}
