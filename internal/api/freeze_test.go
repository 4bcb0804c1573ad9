package api_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/deploy"
	"github.com/scafo/scafo/internal/registry"
)

type freezeAnswer struct {
	Freeze  scafo.Freeze
	Created *bool
	Lifted  *bool
}

func (f *fleet) freeze(method, by, body string) (a freezeAnswer) {
	f.t.Helper()
	w := f.send(method, "/v1/fleet/freeze", by, body)
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
		f.t.Fatalf("%d %s", w.Code, w.Body)
	}
	if strings.Contains(w.Body.String(), `"write"`) {
		f.t.Errorf("the registry's nonce is shown: %s", w.Body)
	}
	return a
}

func TestFreeze(t *testing.T) {
	f := newFleet(t)
	d := wantProblem(t, f.get("/v1/fleet/freeze", "tenant"), scafo.CodeNotFound)
	if d.Title != "Deploys are not frozen" {
		t.Errorf("title %q", d.Title)
	}
	if a := f.freeze("DELETE", "admin", ""); *a.Lifted {
		t.Error("a freeze that was not there was lifted")
	}
	first := f.freeze("POST", "admin", `{"reason":"  moving every node to a new Celld release\t","by":"somebody","frozenAt":"2001-01-01T00:00:00Z"}`)
	if fr := first.Freeze; !*first.Created || fr.V != 1 || fr.By != "admin" || fr.Reason != "moving every node to a new Celld release" || time.Since(fr.FrozenAt) > time.Minute {
		t.Errorf("%+v", first)
	}
	// Twice is one freeze: neither the stamp nor the reason moves.
	if again := f.freeze("POST", "narrow-admin", `{"reason":"another"}`); *again.Created || again.Freeze != first.Freeze {
		t.Errorf("%+v, then %+v", first.Freeze, again.Freeze)
	}
	for _, by := range []string{"admin", "narrow-admin", "tenant"} {
		if a := f.freeze("GET", by, ""); a.Freeze != first.Freeze {
			t.Errorf("%+v", a)
		}
	}
	if a := f.freeze("DELETE", "narrow-admin", ""); !*a.Lifted {
		t.Error("not lifted")
	}
	if a := f.freeze("DELETE", "admin", ""); *a.Lifted {
		t.Error("lifted twice")
	}
	wantProblem(t, f.get("/v1/fleet/freeze", "admin"), scafo.CodeNotFound)
	// A freeze after that is a new one.
	if a := f.freeze("POST", "admin", ""); !*a.Created || a.Freeze.Reason != "" || !a.Freeze.FrozenAt.After(first.Freeze.FrozenAt) {
		t.Errorf("%+v", a)
	}
	if n, m := f.events("event=fleet.frozen", "actor=admin"), f.events("event=fleet.unfrozen", "actor=narrow-admin"); n != 2 || m != 1 {
		t.Errorf("%d and %d events:\n%s", n, m, &f.log)
	}
}

func TestFreezeIsForAdmins(t *testing.T) {
	f := newFleet(t)
	for _, method := range []string{"POST", "DELETE"} {
		d := wantProblem(t, f.send(method, "/v1/fleet/freeze", "tenant", "not JSON"), scafo.CodeAuthScope)
		if !strings.Contains(d.Detail, "fleet makes about itself") {
			t.Errorf("%s: %s", method, d.Detail)
		}
		wantProblem(t, f.send(method, "/v1/fleet/freeze", "node-b", ""), scafo.CodeAuthScope)
	}
}

func TestFreezeReasons(t *testing.T) {
	f := newFleet(t)
	quote := func(s string) string {
		b, err := json.Marshal(map[string]string{"reason": s})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, bad := range []string{
		`null`, `[]`, `"x"`, `1`, ` `, "\n", `{`, `{}{}`, `{"reason":null}`, `{"reason":1}`, `{"reason":["x"]}`, `{"reason":{}}`, `{"reason":"a","reason":"b"}`,
		`{"reason":"\ud800"}`, `{"reason":"\ud800x"}`, `{"reason":"\ude00\ud83d"}`, `{"reason":"\ud83d\n"}`, `{"reason":"\\\ud800"}`, `{"unknown":"\ud800"}`, `{"\udfff":1}`,
		quote("two\nlines"), quote("a\rb"), quote("a\x00b"), quote("a\x1bb"), quote("a\x7fb"), quote("a\u0085b"), quote("a\u2028b"), quote("a\u2029b"),
		quote(strings.Repeat("x", scafo.MaxFreezeReason+1)), quote(strings.Repeat("ü", scafo.MaxFreezeReason+1)),
	} {
		wantProblem(t, f.send("POST", "/v1/fleet/freeze", "admin", bad), scafo.CodeInvalidInput)
		wantProblem(t, f.get("/v1/fleet/freeze", "admin"), scafo.CodeNotFound)
	}
	for body, want := range map[string]string{
		``: "", `{}`: "", quote(""): "", quote(" \n\t "): "", quote("\nx\n"): "x", `{"Reason":"other name"}`: "",
		`{"reason":"\ud83d\ude00"}`: "\U0001f600", `{"reason":"\\ud800"}`: `\ud800`, `{"reason":"\ufffd\u0041"}`: "\ufffdA",
		quote(strings.Repeat("x", scafo.MaxFreezeReason)): strings.Repeat("x", 200),
		quote(strings.Repeat("ü", scafo.MaxFreezeReason)): strings.Repeat("ü", 200),
	} {
		if a := f.freeze("POST", "admin", body); a.Freeze.Reason != want || !*a.Created {
			t.Errorf("%s: %+v", body, a)
		}
		f.freeze("DELETE", "admin", "")
	}
}

// noNodes is a fleet of which nobody serves anything.
type noNodes struct{ deploy.Fleet }

// A frozen fleet takes no deploys, on any node, and creates nothing; everything
// else goes on.
func TestFrozenFleet(t *testing.T) {
	f := newFleet(t)
	limits := deploy.Limits{
		ArtifactBytes: 1, ArchiveEntries: 1, Concurrency: 1, Queue: 1, StagedBytes: 1,
		Receive: time.Second, Wait: time.Second, Task: time.Second,
	}
	service, err := deploy.New(deploy.Config{Node: "node-a", Registry: f.registry, Bucket: f.bucket, Fleet: noNodes{}, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	f.deploys.accept = func(ctx context.Context, r deploy.Request) (scafo.DeployStatus, error) { return service.Accept(ctx, r) }
	f.application("shop", nil)
	f.freeze("POST", "admin", `{"reason":"the reason"}`)
	for _, by := range []string{"admin", "tenant", "node-b"} {
		r := request("POST", "/v1/applications/blog-new/deploys", by, strings.NewReader("x"))
		header, err := scafo.DeployMetadata{}.Header()
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(scafo.DeployHeader, header)
		d := wantProblem(t, f.do(r), scafo.CodeDeploysFrozen)
		if !strings.Contains(d.Detail, "the reason") || !strings.Contains(d.Detail, "admin") {
			t.Errorf("%s", d.Detail)
		}
	}
	if _, err := f.registry.Application(t.Context(), "blog-new"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("a refused deploy made an application: %v", err)
	}
	got(t, f.send("POST", "/v1/applications/shop/retire", "tenant", ""))
	got(t, f.send("POST", "/v1/applications/shop/block", "admin", ""))
	if o, err := f.bucket.Get(t.Context(), registry.FreezeKey); err != nil || !strings.Contains(string(o.Body), `"frozenAt"`) {
		t.Errorf("%v %v", o, err)
	}
}
