// Package buckettest is the suite that every bucket driver passes. It asks for
// no more than what the interface promises: never for a key below another key
// (p and p/q), which stores over a file system refuse, and never for ETags that
// differ between equal contents.
package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/bucket"
)

// outcomes are the kinds of failure of which every error has exactly one.
var outcomes = []error{
	bucket.ErrNotFound, bucket.ErrNotModified, bucket.ErrRefused, bucket.ErrUnavailable,
	bucket.ErrUnknown, bucket.ErrDenied, bucket.ErrInvalid,
}

// largeValue is the size of the largest object that the suite writes.
const largeValue = 8<<20 + 1

type config struct{ laggingETags bool }

// Option relaxes the suite for a store that is known to be weaker, in a way that
// costs its users nothing but a second try.
type Option func(*config)

// LaggingETags admits that a read which meets a write answers the new content
// with the ETag of the one before.
func LaggingETags() Option { return func(c *config) { c.laggingETags = true } }

// Suite runs every test against buckets that open makes; each call of open gives
// an empty bucket.
func Suite(t *testing.T, open func(t *testing.T) bucket.Bucket, opts ...Option) {
	t.Helper()
	var conf config
	for _, o := range opts {
		o(&conf)
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, bucket.Bucket)
	}{
		{"Missing", testMissing},
		{"Create", testCreate},
		{"Replace", testReplace},
		{"PutAndDelete", testPutAndDelete},
		{"GetIfChanged", testGetIfChanged},
		{"Times", testTimes},
		{"Values", testValues},
		{"Keys", testKeys},
		{"RefusedKeys", testRefusedKeys},
		{"CancelledBeforeTheCall", testCancelled},
		{"List", testList},
		{"ListDelimiter", testListDelimiter},
		{"ListPages", testListPages},
		{"ListOrder", testListOrder},
		{"ListManyPages", testListMany},
		{"RacingCreates", testRacingCreates},
		{"RacingReplaces", testRacingReplaces},
		{"RacingRecreates", testRacingRecreates},
		{"Counter", testCounter},
		{"ReadsSeeWholeValues", func(t *testing.T, b bucket.Bucket) { testWholeValues(t, b, conf) }},
		{"Model", testModel},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// wantKind checks that err has this outcome, no other one, and says what was
// being done.
func wantKind(t *testing.T, err, kind error, op, key string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s %s: got error %v, want %v", op, key, err, kind)
	}
	for _, other := range outcomes {
		if !errors.Is(other, kind) && errors.Is(err, other) {
			t.Errorf("%s %s: the error is %q and %q at once: %v", op, key, kind, other, err)
		}
	}
	var e *bucket.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s %s: the error is no *bucket.Error: %v", op, key, err)
	}
	if e.Op != op || e.Key != key {
		t.Errorf("the error says %s %q, want %s %q", e.Op, e.Key, op, key)
	}
}

func mustCreate(t *testing.T, b bucket.Bucket, key, body string) string {
	t.Helper()
	etag, err := b.Create(t.Context(), key, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if etag == "" {
		t.Fatalf("create %s: no ETag", key)
	}
	return etag
}

func wantObject(t *testing.T, b bucket.Bucket, key, body, etag string) {
	t.Helper()
	o, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if string(o.Body) != body {
		t.Errorf("get %s: body %.80q, want %.80q", key, o.Body, body)
	}
	if o.ETag != etag {
		t.Errorf("get %s: ETag %s, want that of the write, %s", key, o.ETag, etag)
	}
	if o.Key != key {
		t.Errorf("get %s: key %q", key, o.Key)
	}
}

func wantMissing(t *testing.T, b bucket.Bucket, key string) {
	t.Helper()
	_, err := b.Get(t.Context(), key)
	wantKind(t, err, bucket.ErrNotFound, "get", key)
}

func testMissing(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	wantMissing(t, b, "missing/key")
	_, err := b.GetIfChanged(ctx, "missing/key", `"d41d8cd98f00b204e9800998ecf8427e"`)
	wantKind(t, err, bucket.ErrNotFound, "get", "missing/key")
	_, err = b.Replace(ctx, "missing/key", `"d41d8cd98f00b204e9800998ecf8427e"`, []byte("x"))
	wantKind(t, err, bucket.ErrRefused, "replace", "missing/key")
	wantMissing(t, b, "missing/key")
	if err := b.Delete(ctx, "missing/key"); err != nil {
		t.Errorf("delete of a missing key: %v", err)
	}
	page, err := b.List(ctx, "missing/", bucket.ListOptions{})
	if err != nil || len(page.Objects)+len(page.Prefixes) != 0 || page.Next != "" {
		t.Errorf("list of nothing: %+v, %v", page, err)
	}
}

func testCreate(t *testing.T, b bucket.Bucket) {
	etag := mustCreate(t, b, "create/a", "first")
	wantObject(t, b, "create/a", "first", etag)

	_, err := b.Create(t.Context(), "create/a", []byte("second"))
	wantKind(t, err, bucket.ErrRefused, "create", "create/a")
	wantObject(t, b, "create/a", "first", etag)

	// The same content is no exception.
	_, err = b.Create(t.Context(), "create/a", []byte("first"))
	wantKind(t, err, bucket.ErrRefused, "create", "create/a")
}

func testReplace(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	first := mustCreate(t, b, "replace/a", "first")
	second, err := b.Replace(ctx, "replace/a", first, []byte("second"))
	if err != nil {
		t.Fatal(err)
	}
	if second == first || second == "" {
		t.Fatalf("replace: ETag %q after %q", second, first)
	}
	wantObject(t, b, "replace/a", "second", second)

	_, err = b.Replace(ctx, "replace/a", first, []byte("third"))
	wantKind(t, err, bucket.ErrRefused, "replace", "replace/a")
	_, err = b.Replace(ctx, "replace/a", "", []byte("third"))
	wantKind(t, err, bucket.ErrRefused, "replace", "replace/a")
	_, err = b.Replace(ctx, "replace/a", "*", []byte("third"))
	wantKind(t, err, bucket.ErrRefused, "replace", "replace/a")
	wantObject(t, b, "replace/a", "second", second)

	// The ETag that a read or a listing gives is that of the write.
	page, err := b.List(ctx, "replace/", bucket.ListOptions{})
	if err != nil || len(page.Objects) != 1 {
		t.Fatalf("list: %+v, %v", page, err)
	}
	if _, err := b.Replace(ctx, "replace/a", page.Objects[0].ETag, []byte("third")); err != nil {
		t.Fatalf("replace with the ETag of a listing: %v", err)
	}

	if err := b.Delete(ctx, "replace/a"); err != nil {
		t.Fatal(err)
	}
	_, err = b.Replace(ctx, "replace/a", second, []byte("fourth"))
	wantKind(t, err, bucket.ErrRefused, "replace", "replace/a")
	wantMissing(t, b, "replace/a")
}

func testPutAndDelete(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	first, err := b.Put(ctx, "put/a", []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	wantObject(t, b, "put/a", "first", first)
	second, err := b.Put(ctx, "put/a", []byte("second"))
	if err != nil {
		t.Fatal(err)
	}
	wantObject(t, b, "put/a", "second", second)
	_, err = b.Replace(ctx, "put/a", first, []byte("third"))
	wantKind(t, err, bucket.ErrRefused, "replace", "put/a")
	for range 2 {
		if err := b.Delete(ctx, "put/a"); err != nil {
			t.Fatal(err)
		}
		wantMissing(t, b, "put/a")
	}
	again := mustCreate(t, b, "put/a", "again")
	wantObject(t, b, "put/a", "again", again)
	// The neighbours of a deleted object stay.
	mustCreate(t, b, "put/b/one", "1")
	two := mustCreate(t, b, "put/b/two", "2")
	if err := b.Delete(ctx, "put/b/one"); err != nil {
		t.Fatal(err)
	}
	wantObject(t, b, "put/b/two", "2", two)
}

func testGetIfChanged(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	first := mustCreate(t, b, "changed/a", "first")
	_, err := b.GetIfChanged(ctx, "changed/a", first)
	wantKind(t, err, bucket.ErrNotModified, "get", "changed/a")
	if _, err := b.Replace(ctx, "changed/a", first, []byte("second")); err != nil {
		t.Fatal(err)
	}
	o, err := b.GetIfChanged(ctx, "changed/a", first)
	if err != nil || string(o.Body) != "second" {
		t.Fatalf("after a change: %v, %v", o, err)
	}
	_, err = b.GetIfChanged(ctx, "changed/a", o.ETag)
	wantKind(t, err, bucket.ErrNotModified, "get", "changed/a")
	if o, err = b.GetIfChanged(ctx, "changed/a", ""); err != nil || string(o.Body) != "second" {
		t.Fatalf("with an empty ETag: %v, %v", o, err)
	}
}

func testTimes(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	// HTTP has whole seconds, and servers may hold their date for a second.
	const slack = 2 * time.Second
	before := time.Now()
	mustCreate(t, b, "times/a", "x")
	o, err := b.Get(ctx, "times/a")
	if err != nil {
		t.Fatal(err)
	}
	if o.Modified.Before(before.Add(-slack)) || o.Modified.After(time.Now().Add(slack)) {
		t.Errorf("modified %v, written at %v", o.Modified, before)
	}
	if o.Date.IsZero() {
		t.Error("the store sent no date")
	} else if o.Date.Before(o.Modified.Add(-slack)) {
		t.Errorf("date %v before modified %v", o.Date, o.Modified)
	}
	page, err := b.List(ctx, "times/", bucket.ListOptions{})
	if err != nil || len(page.Objects) != 1 {
		t.Fatalf("list: %+v, %v", page, err)
	}
	if d := page.Objects[0].Modified.Sub(o.Modified); d.Abs() > slack {
		t.Errorf("the listing says modified %v, a read %v", page.Objects[0].Modified, o.Modified)
	}
}

func testValues(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	large := bytes.Repeat([]byte("0123456789abcdef"), largeValue/16+1)[:largeValue]
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"empty", nil},
		{"one byte", []byte{0}},
		{"binary", []byte("\x00\xff\r\n\r\n\x80")},
		{"page less one", large[:4095]},
		{"chunk", large[:64<<10]},
		{"large", large},
	} {
		key := "values/" + strings.ReplaceAll(c.name, " ", "-")
		etag, err := b.Create(ctx, key, c.body)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		o, err := b.Get(ctx, key)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !bytes.Equal(o.Body, c.body) {
			t.Errorf("%s: %d bytes came back as %d, or changed", c.name, len(c.body), len(o.Body))
		}
		if _, err := b.Replace(ctx, key, etag, []byte("small")); err != nil {
			t.Errorf("%s: replace: %v", c.name, err)
		}
		page, err := b.List(ctx, key, bucket.ListOptions{})
		if err != nil || len(page.Objects) != 1 || page.Objects[0].Size != 5 {
			t.Errorf("%s: listed as %+v, %v", c.name, page.Objects, err)
		}
	}
	// A caller may use its own slice again as soon as the call returned.
	body := []byte("mine")
	etag, err := b.Put(ctx, "values/mine", body)
	if err != nil {
		t.Fatal(err)
	}
	copy(body, "your")
	wantObject(t, b, "values/mine", "mine", etag)
}

func testKeys(t *testing.T, b bucket.Bucket) {
	keys := []string{
		"single",
		"keys/with space",
		"keys/plus+percent%25question?hash#amp&eq=",
		"keys/~tilde(paren)'quote\"!*@:;,$",
		"keys/back\\slash",
		"keys/ünïcödé/日本/🎉",
		"keys/.hidden",
		"keys/dots../..inside/...",
		"_scafo/domains/com/example/shop.json",
		"keys/deep/" + strings.Repeat("d/", 30) + "leaf",
		"keys/" + strings.Repeat("s", 200),
	}
	for i, key := range keys {
		etag := mustCreate(t, b, key, fmt.Sprint(i))
		wantObject(t, b, key, fmt.Sprint(i), etag)
		_, err := b.Create(t.Context(), key, nil)
		wantKind(t, err, bucket.ErrRefused, "create", key)
	}
	for i, key := range keys {
		page, err := b.List(t.Context(), key, bucket.ListOptions{})
		if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != key {
			t.Errorf("list of %q: %+v, %v", key, page, err)
		}
		o, err := b.Get(t.Context(), key)
		if err != nil || string(o.Body) != fmt.Sprint(i) {
			t.Errorf("%q: %v, %v", key, o, err)
		}
		if err := b.Delete(t.Context(), key); err != nil {
			t.Errorf("delete %q: %v", key, err)
		}
		wantMissing(t, b, key)
	}
}

func testRefusedKeys(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	mustCreate(t, b, "b", "victim")
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "../b", "a/..",
		"a\x00b", "a\nb", "a\x7f", "a\xff",
		strings.Repeat("k", bucket.MaxSegmentLength+1),
		strings.Repeat("k/", bucket.MaxKeyLength/2) + "k",
	} {
		_, err := b.Get(ctx, key)
		wantKind(t, err, bucket.ErrInvalid, "get", key)
		_, err = b.GetIfChanged(ctx, key, `"x"`)
		wantKind(t, err, bucket.ErrInvalid, "get", key)
		_, err = b.Create(ctx, key, nil)
		wantKind(t, err, bucket.ErrInvalid, "create", key)
		_, err = b.Replace(ctx, key, `"x"`, nil)
		wantKind(t, err, bucket.ErrInvalid, "replace", key)
		_, err = b.Put(ctx, key, nil)
		wantKind(t, err, bucket.ErrInvalid, "put", key)
		wantKind(t, b.Delete(ctx, key), bucket.ErrInvalid, "delete", key)
	}
	if o, err := b.Get(ctx, "b"); err != nil || string(o.Body) != "victim" {
		t.Errorf("the key beside them: %v, %v", o, err)
	}
}

func testCancelled(t *testing.T, b bucket.Bucket) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	etag := mustCreate(t, b, "cancelled/a", "x")
	// Nothing was sent, so the outcome of a write is known too.
	_, err := b.Get(ctx, "cancelled/a")
	wantKind(t, err, bucket.ErrUnavailable, "get", "cancelled/a")
	_, err = b.Create(ctx, "cancelled/b", []byte("y"))
	wantKind(t, err, bucket.ErrUnavailable, "create", "cancelled/b")
	_, err = b.Replace(ctx, "cancelled/a", etag, []byte("y"))
	wantKind(t, err, bucket.ErrUnavailable, "replace", "cancelled/a")
	_, err = b.Put(ctx, "cancelled/a", []byte("y"))
	wantKind(t, err, bucket.ErrUnavailable, "put", "cancelled/a")
	wantKind(t, b.Delete(ctx, "cancelled/a"), bucket.ErrUnavailable, "delete", "cancelled/a")
	_, err = b.List(ctx, "cancelled/", bucket.ListOptions{})
	wantKind(t, err, bucket.ErrUnavailable, "list", "cancelled/")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the cause is lost: %v", err)
	}
	wantObject(t, b, "cancelled/a", "x", etag)
	wantMissing(t, b, "cancelled/b")
}
