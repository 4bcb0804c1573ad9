package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"go.uber.org/goleak"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, endpoint string) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), s3.Config{
		Bucket: "fleet", Prefix: "some/prefix", Endpoint: endpoint,
		Credentials: credentials.NewStaticCredentialsProvider("access", "secret", ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// calls makes one call of each kind.
func calls(ctx context.Context, b bucket.Bucket) map[string]error {
	out := map[string]error{}
	_, out["get"] = b.GetIfChanged(ctx, "k", `"e"`)
	_, out["create"] = b.Create(ctx, "k", []byte("body"))
	_, out["replace"] = b.Replace(ctx, "k", `"e"`, []byte("body"))
	_, out["put"] = b.Put(ctx, "k", []byte("body"))
	out["delete"] = b.Delete(ctx, "k")
	_, out["list"] = b.List(ctx, "p/", bucket.ListOptions{})
	return out
}

var ops = []string{"get", "create", "replace", "put", "delete", "list"}

// An answer, and what each of the six calls makes of it.
func TestOutcomes(t *testing.T) {
	const (
		ok = iota
		missing
		same
		refused
		unavailable
		unknown
		denied
		invalid
	)
	kinds := []error{
		nil, bucket.ErrNotFound, bucket.ErrNotModified, bucket.ErrRefused, bucket.ErrUnavailable,
		bucket.ErrUnknown, bucket.ErrDenied, bucket.ErrInvalid,
	}
	all := func(k int) [6]int { return [6]int{k, k, k, k, k, k} }
	fivexx := [6]int{unavailable, unknown, unknown, unknown, unknown, unavailable}
	for _, c := range []struct {
		status int
		code   string // empty: no error document
		want   [6]int // get, create, replace, put, delete, list
	}{
		{304, "", [6]int{same, denied, denied, denied, denied, denied}},
		{404, "NoSuchKey", [6]int{missing, denied, refused, denied, ok, denied}},
		{404, "NoSuchBucket", all(denied)},
		{404, "", all(denied)}, // not a store at all
		{412, "PreconditionFailed", [6]int{invalid, refused, refused, invalid, invalid, invalid}},
		{409, "ConditionalRequestConflict", [6]int{invalid, refused, refused, invalid, invalid, invalid}},
		{409, "OperationAborted", [6]int{unavailable, refused, refused, unavailable, unavailable, unavailable}},
		{409, "ObjectParentIsFile", all(invalid)},
		{403, "AccessDenied", all(denied)},
		{403, "SignatureDoesNotMatch", all(denied)},
		{403, "RequestTimeTooSkewed", all(denied)},
		{403, "", all(denied)},
		{401, "", all(denied)},
		{400, "ExpiredToken", all(denied)},
		{400, "AuthorizationHeaderMalformed", all(denied)},
		{301, "PermanentRedirect", all(denied)},
		{400, "KeyTooLongError", all(invalid)},
		{400, "RequestTimeout", all(unavailable)},
		{405, "MethodNotAllowed", all(invalid)},
		{413, "EntityTooLarge", all(invalid)},
		{501, "NotImplemented", all(invalid)},
		{429, "", all(unavailable)},
		{503, "SlowDown", all(unavailable)},
		{507, "InsufficientStorage", all(unavailable)},
		{403, "QuotaExceeded", all(unavailable)},
		{503, "ServiceUnavailable", fivexx},
		{503, "", fivexx},
		{500, "InternalError", fivexx},
		{502, "", fivexx},
		{504, "", fivexx},
	} {
		t.Run(fmt.Sprintf("%d%s", c.status, c.code), func(t *testing.T) {
			var requests atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(c.status)
				if c.code != "" {
					_, _ = fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>m</Message></Error>`, c.code)
				} else if c.status != 304 {
					_, _ = io.WriteString(w, "<html>a proxy's page</html>")
				}
			}))
			defer srv.Close()
			got := calls(t.Context(), open(t, srv.URL))
			for i, op := range ops {
				want := kinds[c.want[i]]
				if bucket.KindOf(got[op]) != want || (want == nil) != (got[op] == nil) {
					t.Errorf("%s: %v, want %v", op, got[op], want)
				}
				if full := c.code == "InsufficientStorage" || c.code == "QuotaExceeded"; errors.Is(got[op], bucket.ErrFull) != full {
					t.Errorf("%s: %v; is it full: %v", op, got[op], full)
				}
			}
			if n := requests.Load(); n != 6 {
				t.Errorf("%d requests for 6 calls: something tried again", n)
			}
		})
	}
}

func wantKinds(t *testing.T, got map[string]error, read, write error) {
	t.Helper()
	for _, op := range ops {
		want := write
		if op == "get" || op == "list" {
			want = read
		}
		if bucket.KindOf(got[op]) != want {
			t.Errorf("%s: %v, want %v", op, got[op], want)
		}
	}
}

// Nothing listens: nothing was applied, and that is known of writes too.
func TestConnectionRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	wantKinds(t, calls(t.Context(), open(t, "http://"+l.Addr().String())), bucket.ErrUnavailable, bucket.ErrUnavailable)
}

// The store takes the request and cuts the connection: the write may have
// happened. Nothing is tried again, whatever the environment asks for.
func TestLostAnswer(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "5")
	t.Setenv("AWS_RETRY_MODE", "adaptive")
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	// Each call on a connection of its own: a transport may repeat a request by
	// itself when a kept connection turns out to have been closed before.
	for range ops {
		s := open(t, srv.URL)
		wantKinds(t, calls(t.Context(), s), bucket.ErrUnavailable, bucket.ErrUnknown)
	}
	if n := int(requests.Load()); n != len(ops)*len(ops) {
		t.Errorf("%d requests for %d calls", n, len(ops)*len(ops))
	}
}

// A caller that gives up while the store works on it cannot know either.
func TestCancelledUnderWay(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-release
	}))
	defer srv.Close()
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s := open(t, srv.URL)
	_, err := s.Create(ctx, "k", []byte("x"))
	if !errors.Is(err, bucket.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("create: %v", err)
	}
	ctx2, cancel2 := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel2()
	_, err = s.Get(ctx2, "k")
	if !errors.Is(err, bucket.ErrUnavailable) {
		t.Errorf("get: %v", err)
	}
}

// A body that ends early is no object.
func TestTruncatedBody(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Header().Set("ETag", `"e"`)
		_, _ = io.WriteString(w, "short")
	}))
	defer srv.Close()
	o, err := open(t, srv.URL).Get(t.Context(), "k")
	if !errors.Is(err, bucket.ErrUnavailable) {
		t.Errorf("%v, %v", o, err)
	}
}

func TestWriteWithoutETag(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer srv.Close()
	if _, err := open(t, srv.URL).Put(t.Context(), "k", nil); !errors.Is(err, bucket.ErrUnknown) {
		t.Errorf("%v", err)
	}
}

// What goes over the wire: path, conditions, no trailers, no checksums that a
// store might not know.
func TestRequests(t *testing.T) {
	type seen struct {
		method, path, query, match, none string
		length                           int64
	}
	var (
		mu  sync.Mutex
		got []seen // guarded by mu
	)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = append(got, seen{
			r.Method, r.URL.EscapedPath(), r.URL.RawQuery,
			r.Header.Get("If-Match"), r.Header.Get("If-None-Match"), r.ContentLength,
		})
		mu.Unlock()
		for h := range r.Header {
			if l := strings.ToLower(h); strings.Contains(l, "checksum") || strings.Contains(l, "trailer") || strings.Contains(l, "decoded") {
				t.Errorf("%s carries %s: %s", r.Method, h, r.Header.Get(h))
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("ETag", `"new"`)
		w.Header().Set("Date", "Mon, 02 Mar 2026 10:00:30 GMT")
		w.Header().Set("Last-Modified", "Mon, 02 Mar 2026 10:00:00 GMT")
		if r.URL.Query().Get("list-type") == "2" {
			w.Header().Del("ETag")
			_, _ = io.WriteString(w, `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>tok/en</NextContinuationToken>`+
				`<Contents><Key>some/prefix/p/k</Key><ETag>"x"</ETag><Size>3</Size><LastModified>2026-03-02T10:00:00Z</LastModified></Contents>`+
				`<CommonPrefixes><Prefix>some/prefix/p/d/</Prefix></CommonPrefixes></ListBucketResult>`)
		}
	}))
	defer srv.Close()
	ctx, s := t.Context(), open(t, srv.URL)
	o, err := s.GetIfChanged(ctx, "a b/ü+", `"old"`)
	if err != nil {
		t.Fatal(err)
	}
	if age := o.Date.Sub(o.Modified); age != 30*time.Second || o.ETag != `"new"` {
		t.Errorf("age %v, ETag %s", age, o.ETag)
	}
	for _, call := range []func() (string, error){
		func() (string, error) { return s.Create(ctx, "k", []byte("12345")) },
		func() (string, error) { return s.Replace(ctx, "k", `"old"`, nil) },
		func() (string, error) { return s.Put(ctx, "k", []byte("1")) },
	} {
		if etag, err := call(); err != nil || etag != `"new"` {
			t.Errorf("%s, %v", etag, err)
		}
	}
	page, err := s.List(ctx, "p/", bucket.ListOptions{Delimiter: "/", After: "p/c", Max: 7})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Objects) != 1 || page.Objects[0].Key != "p/k" || !slices.Equal(page.Prefixes, []string{"p/d/"}) {
		t.Errorf("page %+v", page)
	}
	if _, err := s.List(ctx, "p/", bucket.ListOptions{After: page.Next}); err != nil {
		t.Fatal(err)
	}
	want := []seen{
		{"GET", "/fleet/some/prefix/a%20b/%C3%BC%2B", "x-id=GetObject", "", `"old"`, 0},
		{"PUT", "/fleet/some/prefix/k", "x-id=PutObject", "", "*", 5},
		{"PUT", "/fleet/some/prefix/k", "x-id=PutObject", `"old"`, "", 0},
		{"PUT", "/fleet/some/prefix/k", "x-id=PutObject", "", "", 1},
		{"GET", "/fleet", "delimiter=%2F&list-type=2&max-keys=7&prefix=some%2Fprefix%2Fp%2F&start-after=some%2Fprefix%2Fp%2Fc", "", "", 0},
		{"GET", "/fleet", "continuation-token=tok%2Fen&list-type=2&prefix=some%2Fprefix%2Fp%2F", "", "", 0},
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Errorf("request %d: got %+v, want %+v", i, got[min(i, len(got)-1)], want[i])
		}
	}
}

func TestOpen(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	for _, v := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(v, "")
	}
	static := credentials.NewStaticCredentialsProvider("a", "s", "session")
	for name, c := range map[string]struct {
		config s3.Config
		says   string
	}{
		"no bucket":      {s3.Config{Credentials: static, Region: "r"}, "no bucket"},
		"no region":      {s3.Config{Bucket: "b", Credentials: static}, "no region"},
		"no credentials": {s3.Config{Bucket: "b", Region: "r"}, "no credentials"},
		"bad endpoint":   {s3.Config{Bucket: "b", Credentials: static, Endpoint: "localhost:9000"}, "endpoint"},
		"bad prefix":     {s3.Config{Bucket: "b", Credentials: static, Region: "r", Prefix: "a/../b"}, "prefix"},
	} {
		if _, err := s3.Open(t.Context(), c.config); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := s3.Open(t.Context(), s3.Config{Bucket: "b", Credentials: static, Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	access, secret, session, expires, err := s.Credentials(t.Context())
	if access != "a" || secret != "s" || session != "session" || !expires.IsZero() || err != nil || s.Region() != "us-east-1" {
		t.Errorf("%s %s %s %v %v %s", access, secret, session, expires, err, s.Region())
	}

	// The standard chain: what is in the environment is found.
	t.Setenv("AWS_ACCESS_KEY_ID", "from-environment")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	t.Setenv("AWS_REGION", "eu-west-3")
	s, err = s3.Open(t.Context(), s3.Config{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if access, _, _, _, _ := s.Credentials(t.Context()); access != "from-environment" || s.Region() != "eu-west-3" {
		t.Errorf("%s %s", access, s.Region())
	}
}

// flaky provides credentials once.
type flaky struct{ calls atomic.Int32 }

func (f *flaky) Retrieve(context.Context) (aws.Credentials, error) {
	if f.calls.Add(1) > 1 {
		return aws.Credentials{}, errors.New("the metadata service is away")
	}
	return aws.Credentials{
		AccessKeyID: "a", SecretAccessKey: "s", CanExpire: true, Expires: time.Now().Add(-time.Minute),
	}, nil
}

// Credentials that cannot be refreshed are an outage, and nothing was sent.
func TestCredentialsLost(t *testing.T) {
	s, err := s3.Open(t.Context(), s3.Config{Bucket: "b", Endpoint: "http://127.0.0.1:1", Credentials: &flaky{}})
	if err != nil {
		t.Fatal(err)
	}
	wantKinds(t, calls(t.Context(), s), bucket.ErrUnavailable, bucket.ErrUnavailable)
}

func TestParseURL(t *testing.T) {
	for in, want := range map[string][2]string{
		"s3://fleet":            {"fleet", ""},
		"s3://fleet/":           {"fleet", ""},
		"s3://fleet/some/where": {"fleet", "some/where"},
		"s3://fleet/some/":      {"fleet", "some"},
	} {
		name, prefix, err := s3.ParseURL(in)
		if err != nil || name != want[0] || prefix != want[1] {
			t.Errorf("%s: %q %q %v", in, name, prefix, err)
		}
	}
	for _, in := range []string{"", "fleet", "s3://", "s3:///x", "https://fleet", "s3://a/../b", "s3://a//b", "s3://a?x=y", "s3://u@h"} {
		if _, _, err := s3.ParseURL(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}
