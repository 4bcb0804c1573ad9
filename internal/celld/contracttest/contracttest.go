// Package contracttest drives a program with celld's command line as a black box
// and holds it to the celld contract: arguments, environment, publishing,
// adoption, listeners, health, drain and exit codes. It sees what the program
// prints and answers, and what it writes to a real S3 server; it knows nothing of
// its inside. celld-workerd passes it, and a real celld is driven by naming it in
// CELLD.
package contracttest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/celld"
)

// Program is what is tested.
type Program struct {
	Path string
	// Env is what it needs beyond the contract, such as where its workerd lies.
	Env map[string]string
	// ShortLease makes its lease short, for the tests that wait for its end.
	ShortLease map[string]string
}

// Store is the S3 server that it works on.
type Store struct {
	URL, Bucket, Region, AccessKey, SecretKey string
}

// The bounds of waiting. They are far beyond what anything should take.
const (
	patience = 60 * time.Second
	// soon is how long something may take that waits for nothing.
	soon = 15 * time.Second
	// look is how often a condition is looked at that nothing announces.
	look = 20 * time.Millisecond
)

// Suite runs every check.
func Suite(t *testing.T, p Program, s Store) {
	due := beginCrons(newBench(t, p, s))
	for _, c := range []struct {
		name string
		run  func(*bench)
	}{
		{"Version", testVersion},
		{"CommandLine", testCommandLine},
		{"ListeningRules", testListeningRules},
		{"RemovedVariables", testRemovedVariables},
		{"TakenPort", testTakenPort},
		{"Diagnose", testDiagnose},
		{"WeakStore", testWeakStore},

		{"DeployJSON", testDeployJSON},
		{"DeployLayout", testDeployLayout},
		{"DeployOrder", testDeployOrder},
		{"DeployDryRun", testDeployDryRun},
		{"DeployVersionIsTheContent", testDeployVersion},
		{"DeployFindsItsConfiguration", testDeployConfiguration},
		{"DeployRefusals", testDeployRefusals},
		{"DeployLosesARace", testDeployLosesARace},
		{"DeploysAtOnce", testDeploysAtOnce},
		{"DeployWithoutAnAnswer", testDeployWithoutAnAnswer},

		{"Serves", testServes},
		{"Assets", testAssets},
		{"WebSocket", testWebSocket},
		{"ForwardedHeaders", testForwardedHeaders},
		{"InternalRoutesAreNotPublic", testInternalRoutesAreNotPublic},
		{"NoPointerYet", testNoPointerYet},
		{"NothingServedWhileTheStoreHangs", testNothingServedWhileTheStoreHangs},
		{"State", testState},

		{"AssetOptions", testAssetOptions},
		{"EntryPointsAndModules", testEntryPointsAndModules},
		{"KV", testKV},
		{"D1", testD1},
		{"Queues", testQueues},
		{"Workflows", testWorkflows},

		{"ReloadAdopts", testReloadAdopts},
		{"ReloadUnderLoad", testReloadUnderLoad},
		{"ReloadLetsRequestsFinish", testReloadLetsRequestsFinish},
		{"ReloadClosesSockets", testReloadClosesSockets},
		{"ReloadWithoutTheStore", testReloadWithoutTheStore},
		{"ThrowsAtImport", testThrowsAtImport},
		{"BrokenPointer", testBrokenPointer},

		{"SIGTERMDrains", testSIGTERMDrains},
		{"ShutdownDrains", testShutdownDrains},
		{"DrainHasABound", testDrainHasABound},
		{"SIGTERMWhileBooting", testSIGTERMWhileBooting},
		{"KillLosesNothing", testKillLosesNothing},
		{"DrainAndRestart", testDrainAndRestart},
		{"Frozen", testFrozen},
		{"LostLease", testLostLease},
		{"TwoNodes", testTwoNodes},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newBench(t, p, s)) })
	}
	t.Run("Crons", due.check)
}

// bench is one test's own prefix in the store, reached through a proxy that the
// test controls, and its processes and projects.
type bench struct {
	*testing.T
	program Program
	store   Store
	prefix  string
	proxy   *proxy
	bucket  bucket.Bucket // under the prefix, past the proxy
	dir     string
}

var benches atomic.Int64

func newBench(t *testing.T, p Program, s Store) *bench {
	t.Helper()
	b := &bench{T: t, program: p, store: s, dir: t.TempDir()}
	b.prefix = strings.ToLower(filepath.Base(t.Name())) + "-" + base36(time.Now().UnixNano()) + base36(benches.Add(1))
	b.proxy = newProxy(t, s.URL)
	st, err := s3.Open(t.Context(), s3.Config{
		Bucket: s.Bucket, Prefix: b.prefix, Endpoint: s.URL, Region: s.Region, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	b.bucket = st
	return b
}

func base36(n int64) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	var out []byte
	for ; n > 0; n /= 36 {
		out = append(out, digits[n%36])
	}
	return string(out)
}

// target is the test's prefix, through the proxy.
func (b *bench) target() celld.Target {
	return celld.Target{Bucket: b.store.Bucket + "/" + b.prefix, Endpoint: b.proxy.url, Region: b.store.Region}
}

// env is a child's environment for the node of that name.
func (b *bench) env(node string, extra ...map[string]string) []string {
	b.Helper()
	all := maps.Clone(b.program.Env)
	if all == nil {
		all = map[string]string{}
	}
	for _, e := range extra {
		maps.Copy(all, e)
	}
	p := celld.EnvParams{Extra: all, Inherit: os.LookupEnv}
	if node != "" {
		p.Node = node
		p.Watch, p.AssetCache = filepath.Join(b.dir, node, "data"), filepath.Join(b.dir, node, "assets")
		for _, d := range []string{p.Watch, p.AssetCache} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				b.Fatal(err)
			}
		}
	}
	return celld.Env(celld.Credentials{AccessKey: b.store.AccessKey, SecretKey: b.store.SecretKey, Region: b.store.Region}, p)
}

// object reads an object under the test's prefix; ok is false when there is none.
func (b *bench) object(key string) (body []byte, ok bool) {
	b.Helper()
	o, err := b.bucket.Get(b.Context(), key)
	if isNotFound(err) {
		return nil, false
	}
	if err != nil {
		b.Fatal(err)
	}
	return o.Body, true
}

// keys lists what lies under the test's prefix.
func (b *bench) keys(prefix string) []string {
	b.Helper()
	var list []string
	err := bucket.Walk(b.Context(), b.bucket, prefix, func(i bucket.Info) error {
		list = append(list, i.Key)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return list
}

// until waits for a condition that nothing announces.
func (b *bench) until(what string, within time.Duration, ok func() bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), within)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.Fatalf("waited %v for %s", within, what)
		}
	}
}
