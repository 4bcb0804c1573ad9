package api_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/registry"
)

// publishes is a runtime's deploy command that takes a while and writes what it does.
type publishes struct {
	r      *registry.Registry
	random func(n int) int
}

func (p publishes) Version(context.Context) (string, error) { return "celld 0.6.2", nil }

func (p publishes) Publish(ctx context.Context, app scafo.Application, _, _, _ string) (deploy.Published, error) {
	for _, k := range []string{"deploy-blobs/x", "deploy/current.json"} {
		time.Sleep(time.Duration(p.random(100)) * time.Millisecond)
		if ctx.Err() != nil {
			return deploy.Published{}, ctx.Err()
		}
		if _, err := p.r.Bucket().Put(context.WithoutCancel(ctx), registry.RuntimePrefix(app.Name, app.UID)+k, []byte(`{"version":"v2"}`)); err != nil {
			return deploy.Published{}, err
		}
	}
	return deploy.Published{Version: "v2"}, nil
}

// nobodyServes settles every deploy at once.
type nobodyServes struct{}

func (nobodyServes) Settle(context.Context, scafo.Application, int64, string, func(string, []scafo.DeployNode)) error {
	return nil
}
func (nobodyServes) CelldVersions(context.Context, string) map[string]string { return nil }
func (nobodyServes) NodeAnswers(context.Context, string) bool                { return true }

func artifact(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const config = `{"name":"shop"}`
	if err := w.WriteHeader(&tar.Header{Name: "wrangler.jsonc", Mode: 0o644, Size: int64(len(config))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(config)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// withDeploys gives a node the real intake of deploys.
func withDeploys(t *testing.T, id string) func(*registry.Registry, *api.Deps) {
	dir := t.TempDir()
	return func(r *registry.Registry, d *api.Deps) {
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(uint64(len(dir)), uint64(fences.Add(1))))
		s, err := deploy.New(deploy.Config{
			Node: id, Registry: r, Bucket: r.Bucket(), Fleet: nobodyServes{}, Staging: dir,
			Publisher: publishes{r, func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}},
			Limits: deploy.Limits{ArtifactBytes: 1 << 20, ArchiveEntries: 10, Concurrency: 2, Queue: 16, StagedBytes: 4 << 20, Receive: time.Minute, Wait: time.Minute, Task: time.Minute},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx := untilTheEnd(t, s.Run)
		// As the loop does when it hears of the mark.
		r.OnChange(func(_ context.Context, keys []string) {
			if slices.Contains(keys, registry.ApplicationKey("shop")) {
				go func() {
					if a, err := r.Application(ctx, "shop"); err == nil && a.Deleting != nil {
						s.End(a)
					}
				}()
			}
		})
		d.Deploys = s
	}
}

// deployOf is a request that deploys an artifact.
func deployOf(application, by, artifact string) *http.Request {
	r := request(http.MethodPost, "/v1/applications/"+application+"/deploys", by, strings.NewReader(artifact))
	r.Header.Set(scafo.DeployHeader, emptyHeader)
	return r
}

// emptyHeader is metadata that says nothing.
const emptyHeader = "e30"

// deployBeside sends deploys of an application to both nodes, each at some moment of the
// call that is sent beside them, and returns their statuses once all are answered: they
// are taken in, or refused with a code.
func (c *contest) deployBeside(application, body string, within time.Duration, beside at, refused scafo.Code) (statuses []int) {
	c.t.Helper()
	const each = 2
	statuses = make([]int, each*len(c.nodes))
	codes := make([]scafo.Code, len(statuses))
	var wg sync.WaitGroup
	for i := range statuses {
		r := deployOf(application, "admin", body)
		node, wait := c.nodes[i%len(c.nodes)], time.Duration(c.random.Int64N(int64(within)))
		wg.Go(func() {
			time.Sleep(wait)
			w := record(node, r)
			var said struct{ Code scafo.Code }
			_ = json.Unmarshal(w.Body.Bytes(), &said)
			statuses[i], codes[i] = w.Code, said.Code
		})
	}
	time.Sleep(time.Duration(c.random.Int64N(int64(within))))
	if got := c.send(beside); got[0] != 200 {
		c.t.Errorf("%s %s: %v %s", beside.method, beside.path, got, c.said[0])
	}
	// What comes behind the answer is refused, by either node.
	for _, node := range c.nodes {
		if w := record(node, deployOf(application, "admin", body)); w.Code != 409 {
			c.t.Errorf("behind %s %s: %d %s", beside.method, beside.path, w.Code, w.Body)
		}
	}
	wg.Wait()
	c.wantStatuses(statuses, 202, 409)
	for i, code := range codes {
		if statuses[i] == 409 && code != refused {
			c.t.Errorf("refused with %s", code)
		}
	}
	return statuses
}

// Deploys and a freeze at once: whoever came before it is published in full, whoever came
// behind it is refused, and leaves no application.
func TestRaceOfADeployWithAFreeze(t *testing.T) {
	body := artifact(t)
	sides := map[bool]int{}
	raceOfDeletions(t, withDeploys, func(c *contest) {
		statuses := c.deployBeside("fresh", body, 60*time.Millisecond, at{"POST", "/v1/fleet/freeze", "admin", ""}, scafo.CodeDeploysFrozen)
		time.Sleep(2 * time.Minute)
		a, err := c.registry.Application(c.t.Context(), "fresh")
		if count(statuses, 202) == 0 {
			if scafo.CodeOf(err) != scafo.CodeNotFound {
				c.t.Errorf("a deploy that was refused made an application: %+v %v", a, err)
			}
		} else if err != nil || a.Deployment != "v2" || a.Publishing != nil || a.DeploySeq != int64(count(statuses, 202)) {
			c.t.Errorf("%d deploys were accepted: %+v %v", count(statuses, 202), a, err)
		}
		for _, s := range statuses {
			sides[s == 202]++
		}
	})
	if sides[true] < rounds/4 || sides[false] < rounds/4 {
		t.Errorf("the race has one side: %v", sides)
	}
}

// Deploys and a block at once: whoever came before it is published, or refused at its
// turn; whoever came behind it is refused.
func TestRaceOfADeployWithABlock(t *testing.T) {
	body := artifact(t)
	ends := map[scafo.Code]int{}
	raceOfDeletions(t, withDeploys, func(c *contest) {
		statuses := c.deployBeside("shop", body, 200*time.Millisecond, at{"POST", "/v1/applications/shop/block", "admin", ""}, scafo.CodeApplicationBlocked)
		time.Sleep(2 * time.Minute)
		all, err := c.registry.Deploys(c.t.Context(), "shop")
		if err != nil || len(all) != count(statuses, 202) {
			c.t.Errorf("%d deploys were accepted, %d are recorded, %v", count(statuses, 202), len(all), err)
		}
		published := false
		for _, d := range all {
			ends[d.Code]++
			switch {
			case d.State == scafo.DeployDeployed:
				published = true
			case d.State != scafo.DeployFailed || d.Code != scafo.CodeApplicationBlocked && d.Code != scafo.CodeDeploySuperseded:
				c.t.Errorf("a deploy ended as %+v", d.DeployStatus)
			}
		}
		if a := c.app(); a.Blocked == nil || a.Publishing != nil || (a.Deployment == "v2") != published {
			c.t.Errorf("published %v, and the application is %+v", published, a)
		}
	})
	if ends[""] == 0 || ends[scafo.CodeApplicationBlocked] == 0 {
		t.Errorf("the race has one side: %v", ends)
	}
}
