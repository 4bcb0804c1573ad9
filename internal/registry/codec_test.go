package registry

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/memory"
)

func put(t *testing.T, b *memory.Store, key, body string) {
	t.Helper()
	if _, err := b.Put(context.Background(), key, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, b *memory.Store, key string) map[string]any {
	t.Helper()
	o, err := b.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(o.Body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestUnknownFieldsSurviveAChange(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	key := ApplicationKey("shop")
	put(t, b, key, `{"v":1,"write":"old","name":"shop","uid":"u","createdAt":"2026-01-02T03:04:05Z","createdBy":"op","replicas":2,
		"future":{"a":[1,2.50]},"Blocked":"a name of its own","labels":{"tier":"gold","drop":"me"},
		"blocked":{"at":"2026-01-02T03:04:05Z","by":"op","why":"unpaid"},
		"publishing":{"deploy":"shop.1","seq":3,"slot":"b"},
		"domains":[{"host":"a.example","since":1},{"host":"b.example","since":2},{"host":"c.example","since":3}]}`)
	_, err := Update(t.Context(), r, key, func(d *Doc[scafo.Application]) error {
		if d.Value.Blocked == nil || d.Value.Blocked.By != "op" {
			t.Errorf("blocked was read as %+v", d.Value.Blocked)
		}
		d.Value.Replicas = scafo.Replicas{All: true}
		d.Value.Publishing = nil
		delete(d.Value.Labels, "drop")
		// b goes, a and c change places, c changes, d comes.
		d.Value.Domains = []scafo.Domain{{Host: "c.example", Wildcard: true}, {Host: "a.example"}, {Host: "d.example"}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := stored(t, b, key)
	if w, _ := got["write"].(string); w == "old" || len(w) != 2*nonceBytes {
		t.Errorf("the nonce is %v", got["write"])
	}
	delete(got, "write")
	var want map[string]any
	if err := json.Unmarshal([]byte(`{"v":1,"name":"shop","uid":"u","createdAt":"2026-01-02T03:04:05Z","createdBy":"op","replicas":"all","deploySeq":0,
		"future":{"a":[1,2.5]},"Blocked":"a name of its own","labels":{"tier":"gold"},
		"blocked":{"at":"2026-01-02T03:04:05Z","by":"op","why":"unpaid"},
		"domains":[{"host":"c.example","wildcard":true,"since":3},{"host":"a.example","since":1},{"host":"d.example"}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if o, _ := b.Get(t.Context(), key); !strings.Contains(string(o.Body), "2.50") {
		t.Errorf("a number was spelled anew: %s", o.Body)
	}
}

func TestANewerDocumentIsLeftAlone(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	key := ApplicationKey("shop")
	put(t, b, key, `{"v":2,"write":"w","name":"shop"}`)
	before, _ := b.Get(t.Context(), key)
	calls := map[string]func() error{
		"load": func() error { _, err := r.Application(t.Context(), "shop"); return err },
		"create": func() error {
			_, _, err := r.CreateApplication(t.Context(), "shop", "op", nil)
			return err
		},
		"update": func() error {
			_, err := r.UpdateApplication(t.Context(), "shop", func(*scafo.Application) error { return nil })
			return err
		},
		"remove": func() error { _, err := Remove[scafo.Application](t.Context(), r, key, nil); return err },
	}
	for name, call := range calls {
		err := call()
		var newer *NewerError
		if !errors.As(err, &newer) || newer.Key != key || newer.V != 2 || scafo.CodeOf(err) != scafo.CodeInternal {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%s: the error does not name the document: %v", name, err)
		}
	}
	if after, _ := b.Get(t.Context(), key); after.ETag != before.ETag {
		t.Error("it was rewritten")
	}
}

func TestWhatIsNoDocument(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	for _, body := range []string{
		``, ` `, `x`, `[]`, `null`, `"v"`, `{}`, `{"v":0}`, `{"v":-1}`, `{"v":"1"}`, `{"v":1.5}`, `{"V":1}`,
		`{"v":1,"v":1}`, `{"v":1,"v":2}`, `{"v":1}{"v":1}`, `{"v":1} x`, `{"v":1,"name":1}`, `{"v":1,"replicas":0}`,
		`{"v":1,"labels":{"a":"1","a":"2"}}`, `{"v":1,`, `{"v":1,"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
		`{"v":1,"x":"` + strings.Repeat("x", MaxDocument) + `"}`,
	} {
		put(t, b, ApplicationKey("shop"), body)
		_, err := r.Application(t.Context(), "shop")
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Key != ApplicationKey("shop") || scafo.CodeOf(err) != scafo.CodeInternal {
			t.Errorf("%.60s: %v", body, err)
		}
	}
}

func TestMaxDocument(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	write := func(n int) error {
		_, err := Update(t.Context(), r, FreezeKey, func(d *Doc[scafo.Freeze]) error {
			d.Value.Reason = strings.Repeat("x", n)
			return nil
		})
		return err
	}
	if err := write(0); err != nil {
		t.Fatal(err)
	}
	o, _ := b.Get(t.Context(), FreezeKey)
	empty := len(o.Body) + len(`,"reason":""`)
	if err := write(MaxDocument - empty); err != nil {
		t.Errorf("the longest document: %v", err)
	}
	if _, err := r.Freeze(t.Context()); err != nil {
		t.Errorf("reading the longest document: %v", err)
	}
	if err := write(MaxDocument - empty + 1); scafo.CodeOf(err) != scafo.CodeResourceLimit {
		t.Errorf("one byte more: %v", err)
	}
}

func TestTimesAreInUTC(t *testing.T) {
	elsewhere := time.FixedZone("elsewhere", -3600)
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, elsewhere)
	h := scafo.Heartbeat{At: at, Processes: []scafo.ProcessStatus{{StartedAt: &at, LastExit: &scafo.Exit{At: at}, LastLines: []string{"2026-01-02T03:04:05-01:00"}}}}
	for _, earlier := range [][]byte{nil, []byte(`{"v":1,"x":1}`)} {
		body, err := encode(h, earlier)
		if err != nil {
			t.Fatal(err)
		}
		const want = "2026-01-02T04:04:05.0000006Z"
		if n := strings.Count(string(body), want); n != 3 || strings.Count(string(body), "-01:00") != 1 {
			t.Errorf("%s", body)
		}
	}
	if h.At != at {
		t.Error("the caller's value was changed")
	}
}

// A document of this release reads back as it was, whatever stood there before,
// and everything that the earlier one had beyond this release is still there.
func TestEncodeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zA-Z<>&" ]{0,6}`)
		app := scafo.Application{
			Header: scafo.Header{V: 1, Write: "w"}, Name: text.Draw(t, "name"), Replicas: scafo.Replicas{Count: rapid.IntRange(1, 9).Draw(t, "n")},
			Labels:  rapid.MapOfN(rapid.StringMatching(`[a-z]{1,2}`), text, 0, 3).Draw(t, "labels"),
			Domains: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) scafo.Domain { return scafo.Domain{Host: text.Draw(t, "host")} }), 0, 3).Draw(t, "domains"),
		}
		extra := rapid.MapOfN(rapid.StringMatching(`x[a-z]{1,2}`), rapid.IntRange(0, 99), 0, 3).Draw(t, "extra")
		before := map[string]any{"v": 1, "write": "o", "name": "n", "replicas": "all", "labels": map[string]string{"gone": "1"}}
		for k, v := range extra {
			before[k] = v
		}
		old, err := json.Marshal(before)
		if err != nil {
			t.Fatal(err)
		}
		body, err := encode(app, old)
		if err != nil {
			t.Fatal(err)
		}
		var back scafo.Application
		if gone, err := decode("k", body, &back); err != nil || gone {
			t.Fatalf("%s: %v %v", body, gone, err)
		}
		if len(app.Labels) == 0 {
			app.Labels = nil
		}
		if len(app.Domains) == 0 {
			app.Domains = nil
		}
		if !reflect.DeepEqual(app, back) {
			t.Fatalf("%s reads as %+v, want %+v", body, back, app)
		}
		var all map[string]any
		if err := json.Unmarshal(body, &all); err != nil {
			t.Fatal(err)
		}
		for k, v := range extra {
			if all[k] != float64(v) {
				t.Fatalf("%s has lost %s", body, k)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"v":1,"write":"w","name":"shop","replicas":1}`)
	f.Add(`{"v":1,"tombstone":true}`)
	f.Fuzz(func(t *testing.T, body string) {
		var app scafo.Application
		gone, err := decode("k", []byte(body), &app)
		if err != nil || gone {
			return
		}
		if _, err := encode(app, []byte(body)); err != nil {
			t.Fatalf("it was read, and cannot be written: %v", err)
		}
	})
}
