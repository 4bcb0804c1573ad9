package server

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
)

const record = `{"node":"a1","address":"10.0.0.1:7001","expires_ms":1796182655000,"instance":18446744073709551615,"draining":false,"write":"w1"}`

func TestReleaseMember(t *testing.T) {
	b := memory.New()
	if _, err := b.Create(t.Context(), "p/v1/nodes/a1.json", []byte(record)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it has left already
		if err := releaseMember(t.Context(), b, "p/v1/nodes/a1.json", "10.0.0.1:7001"); err != nil {
			t.Fatal(err)
		}
		o, err := b.Get(t.Context(), "p/v1/nodes/a1.json")
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(o.Body, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"node": `"a1"`, "address": `"10.0.0.1:7001"`, "expires_ms": "0", "instance": "18446744073709551615", "draining": "true", "write": `"w1"`}
		for k, v := range want {
			if string(got[k]) != v {
				t.Errorf("%s: %s, want %s", k, got[k], v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s", o.Body)
		}
	}
	if err := releaseMember(t.Context(), b, "p/v1/nodes/none.json", "x"); err != nil {
		t.Errorf("a record that is gone: %v", err)
	}
}

func TestReleaseRefusesStrangeRecords(t *testing.T) {
	for name, body := range map[string]string{
		"another address": strings.Replace(record, "7001", "7002", 1),
		"no lease":        `{"node":"a1","address":"10.0.0.1:7001","draining":false}`,
		"no JSON":         `x`,
		"a list":          `[]`,
	} {
		b := memory.New()
		if _, err := b.Create(t.Context(), "k", []byte(body)); err != nil {
			t.Fatal(err)
		}
		if err := releaseMember(t.Context(), b, "k", "10.0.0.1:7001"); err == nil {
			t.Errorf("%s was released", name)
		}
		if o, err := b.Get(t.Context(), "k"); err != nil || string(o.Body) != body {
			t.Errorf("%s was changed: %s %v", name, o.Body, err)
		}
	}
}

// renewing lets a renewal of the dead process arrive just before the release.
type renewing struct {
	bucket.Bucket
	once sync.Once
	late func()
}

func (r *renewing) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	r.once.Do(r.late)
	return r.Bucket.Replace(ctx, key, etag, body)
}

func TestALateRenewalDoesNotSurviveTheRelease(t *testing.T) {
	m := memory.New()
	etag, err := m.Create(t.Context(), "k", []byte(record))
	if err != nil {
		t.Fatal(err)
	}
	renewed := strings.Replace(record, "1796182655000", "1796182675000", 1)
	r := &renewing{Bucket: m, late: func() {
		if _, err := m.Replace(t.Context(), "k", etag, []byte(renewed)); err != nil {
			t.Error(err)
		}
	}}
	if err := releaseMember(t.Context(), r, "k", "10.0.0.1:7001"); err != nil {
		t.Fatal(err)
	}
	o, err := m.Get(t.Context(), "k")
	if err != nil || !strings.Contains(string(o.Body), `"expires_ms":0`) {
		t.Errorf("%s %v", o.Body, err)
	}
	// One that arrives after it is refused by its condition.
	if _, err := m.Replace(t.Context(), "k", etag, []byte(renewed)); !errors.Is(err, bucket.ErrRefused) {
		t.Error(err)
	}
}

func TestFindMember(t *testing.T) {
	b := memory.New()
	put := func(id, address, expires string, draining bool) {
		t.Helper()
		body := strings.NewReplacer("a1", id, "10.0.0.1:7001", address, "1796182655000", expires).Replace(record)
		if draining {
			body = strings.Replace(body, "false", "true", 1)
		}
		if _, err := b.Put(t.Context(), "c/v1/nodes/"+id+".json", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	find := func() (string, error) { return findMember(t.Context(), b, "c/", "10.0.0.1:7001", time.Now()) }
	if k, err := find(); err == nil {
		t.Errorf("found %s", k)
	}
	put("a1", "10.0.0.1:7001", "5", false)
	put("a2", "10.0.0.1:7002", "5", false)
	put("a3", "10.0.0.1:7001", "0", true)
	if k, err := find(); err != nil || k != "c/v1/nodes/a1.json" {
		t.Errorf("%s %v", k, err)
	}
	put("a4", "10.0.0.1:7001", "5", false)
	if k, err := find(); err == nil {
		t.Errorf("two have the address, and %s was taken", k)
	}
}

func TestLapsed(t *testing.T) {
	clock := time.Now()
	b := memory.New(memory.WithClock(func() time.Time { return clock }))
	put := func(id, body string) {
		t.Helper()
		if _, err := b.Put(t.Context(), "c/v1/nodes/"+id+".json", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	put("gone", record)
	put("left", strings.NewReplacer("1796182655000", "0", "false", "true").Replace(record))
	ago := func() []time.Duration {
		t.Helper()
		l, err := lapsed(t.Context(), b, "c/", 20*time.Second, clock)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	clock = clock.Add(20*time.Second + lapseSlack)
	if l := ago(); len(l) != 0 {
		t.Errorf("%v", l)
	}
	clock = clock.Add(7 * time.Second)
	put("lives", record)
	if l := ago(); len(l) != 1 || l[0] != lapseSlack+7*time.Second {
		t.Errorf("%v", l)
	}
}

func TestClusterKeyIsOne(t *testing.T) {
	b := memory.New()
	keys := make([]string, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			k, err := clusterKey(t.Context(), b)
			if err != nil {
				t.Error(err)
			}
			keys[i] = k
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] || len(k) < minSecret {
			t.Errorf("%q", keys)
		}
	}
	if _, err := b.Put(t.Context(), secretKey, []byte(`{"v":2,"key":"`+keys[0]+`"}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := clusterKey(t.Context(), b); err == nil || strings.Contains(err.Error(), keys[0]) {
		t.Errorf("%v", err)
	}
}

func TestProvenGone(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if id.provenGone() {
		t.Error("a running process is said to be gone")
	}
	other := id
	other.Start++
	if !other.provenGone() {
		t.Error("a process with another start time has the id: the one of before is gone")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for !id.provenGone() { // a zombie until it is reaped
		time.Sleep(time.Millisecond)
	}
	_ = cmd.Wait()
	if !id.provenGone() {
		t.Error("it is gone")
	}
	for name, change := range map[string]func(*identity){
		"another boot":      func(i *identity) { i.Boot = "b" },
		"another namespace": func(i *identity) { i.Namespace = "pid:[1]" },
		"no process id":     func(i *identity) { i.PID = 0 },
	} {
		i := id
		change(&i)
		if i.provenGone() {
			t.Errorf("%s: it cannot be known", name)
		}
	}
	if rss(os.Getpid()) < 1<<20 || rss(-1) != 0 {
		t.Error("rss")
	}
}

func TestDataDir(t *testing.T) {
	path := t.TempDir()
	d, err := openDataDir(path, "store a")
	if err != nil {
		t.Fatal(err)
	}
	child := savedChild{identity: identity{PID: 5, Start: 6, Boot: "b", Namespace: "n"}, Slot: 1, Record: "r", Address: "a"}
	if err := d.update(func(s *savedState) { s.Slot = 3; s.Children = append(s.Children, child) }); err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(d.file("state.json")); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i, err)
	}
	if err := os.MkdirAll(d.newRun(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(path, "store a"); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("used twice: %v", err)
	}
	d.close()
	d, err = openDataDir(path, "store a")
	if err != nil {
		t.Fatal(err)
	}
	if s := d.saved(); s.Slot != 3 || len(s.Children) != 1 || s.Children[0] != child {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(d.file("run")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("configurations of before stay: %v", err)
	}
	d.close()
	for name, change := range map[string]func(){
		"another store": func() {},
		"no JSON":       func() { _ = os.WriteFile(d.file("state.json"), []byte("{"), 0o600) },
	} {
		change()
		d, err := openDataDir(path, "store b")
		if err != nil {
			t.Fatal(err)
		}
		if s := d.saved(); len(s.Children) != 0 || s.Slot != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		d.close()
	}
}
