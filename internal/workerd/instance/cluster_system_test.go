//go:build system

package instance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/coder/websocket"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/embedded/embeddedtest"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/publish"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

// The test binary is also a parent that is killed.
const parentVariable = "SCAFO_TEST_PARENT"

func TestMain(m *testing.M) {
	embeddedtest.Main()
	os.Exit(m.Run())
}

// leaseEnd is how long objects wait for an owner that was killed. The tests do
// not shorten it: a store's Date header may be behind by nearly two seconds, and
// the runtime bears less when its times are divided.
const leaseEnd = 20 * time.Second

// fleet is one application's prefix in a real store.
type fleet struct {
	endpoint embedded.Endpoint
	prefix   string
	bucket   *s3.Store
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	e := embeddedtest.Start(t, t.TempDir())
	f := &fleet{endpoint: e, prefix: "fleets/app/uid"}
	var err error
	f.bucket, err = s3.Open(t.Context(), s3.Config{
		Bucket: e.Bucket, Prefix: f.prefix, Endpoint: e.URL, Region: e.Region, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(e.AccessKey, e.SecretKey, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.bucket.Close)
	return f
}

// deploy publishes a project and fetches it back.
func (f *fleet) deploy(t *testing.T, project string) *layout.Deployment {
	t.Helper()
	_, err := publish.Deploy(t.Context(), publish.Options{
		Project: project, Workerd: func() (string, error) { return workerdtest.Path(t), nil },
		Bucket: func(context.Context) (bucket.Bucket, error) { return f.bucket, nil }, Say: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := layout.Load(t.Context(), f.bucket)
	if err != nil {
		t.Fatal(err)
	}
	d, err := layout.Fetch(t.Context(), f.bucket, p, layout.FetchOptions{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (f *fleet) start(t *testing.T, d *layout.Deployment, disk string) *instance.Instance {
	t.Helper()
	i, ctx := launch(t, instance.Spec{
		Deployment: d, Disk: disk, Log: func(l instance.Line) { fmt.Fprintf(t.Output(), "%+v\n", l) },
		Cluster: &instance.Cluster{
			Bucket: "s3://" + f.endpoint.Bucket + "/" + f.prefix + "/cluster", Endpoint: f.endpoint.URL, Region: f.endpoint.Region,
			Credentials: instance.Credentials{AccessKey: f.endpoint.AccessKey, SecretKey: f.endpoint.SecretKey},
			Listen:      "127.0.0.1:0", Key: strings.Repeat("k", instance.MinKey),
		},
	})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-i.Done():
			t.Logf("workerd %d ended with %v: %s", i.PID(), i.Exit(), i.Stderr())
		default:
		}
	})
	return i
}

func example(name string) string { return filepath.Join("../../../examples", name) }

// count asks once: what the runtime sends on by itself must not fail.
func count(t *testing.T, i *instance.Instance, query string) string {
	t.Helper()
	status, body := get(t, "http://"+i.Addr()+"/"+query)
	if status != http.StatusOK {
		t.Fatalf("answered %d %q", status, body)
	}
	return strings.TrimSpace(body)
}

// eventually asks until the answer is 200: while the lease of an owner that was
// killed runs out, requests wait, and are then cut.
func eventually(t *testing.T, url string) string {
	t.Helper()
	for deadline := time.Now().Add(leaseEnd + patience); ; {
		resp, err := http.Get(url)
		if err == nil {
			var body []byte
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && resp.StatusCode == http.StatusOK {
				return strings.TrimSpace(string(body))
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v", url, err)
		}
		time.Sleep(50 * time.Millisecond) // only not to fill the log
	}
}

func TestCounterSurvivesKillAndLossOfTheDisk(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	d := f.deploy(t, example("counter"))
	disk := filepath.Join(t.TempDir(), "a")
	a, b := f.start(t, d, disk), f.start(t, d, t.TempDir())
	for n := 1; n <= 25; n++ {
		if got := count(t, a, ""); got != fmt.Sprint(n) {
			t.Fatalf("write %d answered %s", n, got)
		}
	}
	if got := count(t, b, "?read"); got != "25" {
		t.Errorf("the peer reads %s", got)
	}
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	<-a.Done()
	if err := os.RemoveAll(disk); err != nil {
		t.Fatal(err)
	}
	if got := eventually(t, "http://"+b.Addr()+"/?read"); got != "25" {
		t.Errorf("after the kill: %s, want 25", got)
	}
}

func TestADiskIsOneProcesssOwn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	d := f.deploy(t, example("counter"))
	disk := filepath.Join(t.TempDir(), "disk")
	a := f.start(t, d, disk)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	s := a.Spec()
	s.Run = filepath.Join(t.TempDir(), "other")
	if _, err := instance.Start(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second process on the disk: %v", err)
	}
	if _, err := instance.Start(t.Context(), s); !errors.Is(err, instance.ErrDiskInUse) {
		t.Errorf("a second process on the disk: %v", err)
	}
	// The lock goes with the process, though nobody waits for it here.
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	f.start(t, d, disk)
}

func TestDrainHandsOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	d := f.deploy(t, example("counter"))
	a, b := f.start(t, d, t.TempDir()), f.start(t, d, t.TempDir())
	for range 5 {
		count(t, a, "")
	}
	if err := a.Drain(); err != nil {
		t.Fatal(err)
	}
	for n := 6; n <= 10; n++ {
		if got := count(t, b, ""); got != fmt.Sprint(n) {
			t.Fatalf("while the other drains, write %d answered %s", n, got)
		}
	}
	select {
	case <-a.Done():
	case <-time.After(2 * patience):
		t.Fatal("did not drain")
	}
	if e := a.Exit(); e.Code != 0 {
		t.Errorf("drained with %v", e)
	}
	if err := a.Healthy(t.Context()); err == nil {
		t.Error("healthy after its end")
	}
}

func TestDrainLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"wrangler.json": `{"name": "slow", "main": "a.js", "compatibility_date": "2026-11-01",
			"durable_objects": {"bindings": [{"name": "C", "class_name": "C"}]}, "migrations": [{"tag": "v1", "new_sqlite_classes": ["C"]}]}`,
		"a.js": `import { DurableObject } from "cloudflare:workers";
			export class C extends DurableObject {}
			export default { async fetch(req) { console.log("begun"); await scheduler.wait(8000); return new Response("done"); } }`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet(t)
	d := f.deploy(t, dir)
	begun := make(chan struct{})
	var once sync.Once
	i, ctx := launch(t, instance.Spec{
		Deployment: d, Disk: t.TempDir(), Log: func(l instance.Line) {
			if l.Text == "begun" {
				once.Do(func() { close(begun) })
			}
		},
		Cluster: &instance.Cluster{
			Bucket: "s3://" + f.endpoint.Bucket + "/" + f.prefix + "/cluster", Endpoint: f.endpoint.URL, Region: f.endpoint.Region,
			Credentials: instance.Credentials{AccessKey: f.endpoint.AccessKey, SecretKey: f.endpoint.SecretKey},
			Listen:      "127.0.0.1:0", Key: strings.Repeat("k", instance.MinKey),
		},
	})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + i.Addr() + "/")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		answer <- fmt.Sprintf("%d %s %v", resp.StatusCode, body, err)
	}()
	<-begun
	if err := i.Drain(); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got != "200 done <nil>" {
		t.Errorf("the request that ran ended with %s", got)
	}
	<-i.Done()
	if e := i.Exit(); e.Code != 0 {
		t.Errorf("drained with %v", e)
	}
}

func TestChat(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	i := f.start(t, f.deploy(t, example("chat")), t.TempDir())
	if status, body := get(t, "http://"+i.Addr()+"/"); status != 200 || !strings.Contains(body, "<title>Chat</title>") {
		t.Errorf("the page: %d %q", status, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := func(name string) *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(ctx, "ws://"+i.Addr()+"/ws/room?name="+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.CloseNow() })
		return c
	}
	expect := func(c *websocket.Conn, want string) {
		t.Helper()
		_, got, err := c.Read(ctx)
		if err != nil || string(got) != want {
			t.Fatalf("read %s, %v; want %s", got, err, want)
		}
	}
	ann, ben := dial("Ann"), dial("Ben")
	if err := ann.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	expect(ann, `{"name":"Ann","text":"hello"}`)
	expect(ben, `{"name":"Ann","text":"hello"}`)
	// Idle for ten seconds, the object leaves memory and the sockets stay.
	select {
	case <-time.After(12 * time.Second):
	case <-ctx.Done():
	}
	if err := ben.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	expect(ann, `{"name":"Ben","text":"still here"}`)
	late := dial("Cat")
	expect(late, `{"name":"Ann","text":"hello"}`)
	expect(late, `{"name":"Ben","text":"still here"}`)
}

func TestRemindersRing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	d := f.deploy(t, example("reminders"))
	a, b := f.start(t, d, t.TempDir()), f.start(t, d, t.TempDir())
	resp, err := http.Post("http://"+a.Addr()+"/?in=1.5", "text/plain", strings.NewReader("tea"))
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("%v %v", resp, err)
	}
	resp.Body.Close()
	// Its owner is gone before it is due.
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	<-a.Done()
	for deadline := time.Now().Add(leaseEnd + patience); ; {
		var list []struct {
			Text string
			Due  int64
			Rang *int64
		}
		err := json.Unmarshal([]byte(eventually(t, "http://"+b.Addr()+"/")), &list)
		if err != nil || len(list) != 1 || list[0].Text != "tea" {
			t.Fatalf("%+v, %v", list, err)
		}
		if list[0].Rang != nil {
			if *list[0].Rang < list[0].Due {
				t.Errorf("rang too early: %+v", list[0])
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("did not ring")
		}
	}
}

// TestEndsWithItsParent: whoever started a workerd may be killed without a word.
func TestEndsWithItsParent(t *testing.T) {
	if os.Getenv(parentVariable) != "" {
		d := deployment(t, layout.Manifest{Main: "index.js"}, map[string]string{"index.js": "export default {}"}, nil)
		i, ctx := launch(t, instance.Spec{Deployment: d})
		if err := i.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("PID %d\n", i.PID())
		select {}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestEndsWithItsParent$")
	cmd.Env = append(os.Environ(), parentVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "PID %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for deadline := time.Now().Add(patience); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("workerd %d outlived its parent", pid)
		}
	}
}
