package problem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/problem"
)

// The statuses that the specification and the design give.
var statuses = map[scafo.Code]int{
	scafo.CodeApplicationBlocked: 409, scafo.CodeApplicationDeleting: 409, scafo.CodeAuthInvalid: 401,
	scafo.CodeAuthScope: 403, scafo.CodeCapabilityMissing: 409, scafo.CodeCASConflict: 409,
	scafo.CodeDeployOverloaded: 429, scafo.CodeDeploySuperseded: 409, scafo.CodeDeployTimeout: 408,
	scafo.CodeDeploysFrozen: 409, scafo.CodeDraining: 503, scafo.CodeInternal: 500, scafo.CodeInvalidInput: 400,
	scafo.CodeInvalidSlug: 400, scafo.CodeMethodNotAllowed: 405, scafo.CodeNotFound: 404, scafo.CodeNotRetired: 409,
	scafo.CodePublishFailed: 422, scafo.CodeReferenceHeld: 409, scafo.CodeResourceLimit: 413,
	scafo.CodeRetireGrace: 409, scafo.CodeStoreUnavailable: 503, scafo.CodeTrustMismatch: 403, scafo.CodeVersionSkew: 409,
}

func TestEveryCodeHasAStatusAndATitle(t *testing.T) {
	for _, c := range scafo.Codes() {
		want, ok := statuses[c]
		if !ok {
			t.Errorf("%s: this test knows no status for it", c)
		}
		if got := problem.Status(c); got != want {
			t.Errorf("%s: status %d, want %d", c, got, want)
		}
		if c != scafo.CodeInternal && problem.Title(c) == problem.Title(scafo.CodeInternal) {
			t.Errorf("%s: no title", c)
		}
	}
}

// One row in the reference for each code, with its status, and no row for another.
func TestReferenceHasEveryCode(t *testing.T) {
	b, err := os.ReadFile("../../docs/reference/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| <a id=\"([a-z-]+)\"></a>`([a-z-]+)` \\| ([0-9]+) \\| [^|]+ \\|[^|]*\\|$")
	rows := map[scafo.Code]int{}
	order := []string{}
	for _, m := range row.FindAllStringSubmatch(string(b), -1) {
		if m[1] != m[2] {
			t.Errorf("the row of %s has the anchor %s", m[2], m[1])
		}
		if _, twice := rows[scafo.Code(m[2])]; twice {
			t.Errorf("%s has two rows", m[2])
		}
		rows[scafo.Code(m[2])], _ = strconv.Atoi(m[3])
		order = append(order, m[2])
	}
	if n := strings.Count(string(b), "<a id="); n != len(rows) {
		t.Errorf("%d rows, %d of them read", n, len(rows))
	}
	for _, c := range scafo.Codes() {
		if rows[c] != problem.Status(c) {
			t.Errorf("%s: the reference says %d, the code %d", c, rows[c], problem.Status(c))
		}
		delete(rows, c)
	}
	for c := range rows {
		t.Errorf("%s: in the reference, but no code", c)
	}
	for i := 1; i < len(order); i++ {
		if order[i-1] >= order[i] {
			t.Errorf("%s stands before %s", order[i-1], order[i])
		}
	}
}

// write returns the answer for an error and what was logged.
func write(t *testing.T, err error) (*http.Response, problem.Document, string) {
	t.Helper()
	var log bytes.Buffer
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/v1/state", nil)
	problem.Write(w, r, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), err)
	res := w.Result()
	defer res.Body.Close()
	var d problem.Document
	if err := json.NewDecoder(res.Body).Decode(&d); err != nil {
		t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("content type %q", ct)
	}
	if res.StatusCode != d.Status {
		t.Errorf("status %d, in the document %d", res.StatusCode, d.Status)
	}
	return res, d, log.String()
}

func TestDocument(t *testing.T) {
	_, d, _ := write(t, scafo.Malformed("no such thing as %d", 7))
	want := problem.Document{Type: "/reference/errors#invalid-input", Title: "Malformed request", Status: 400, Detail: "no such thing as 7", Code: "invalid-input"}
	if d != want {
		t.Errorf("got %+v", d)
	}
	_, d, _ = write(t, fmt.Errorf("around: %w", scafo.Errorf(scafo.CodeNotFound, "gone")))
	want = problem.Document{Type: "/reference/errors#not-found", Title: "Not found", Status: 404, Detail: "gone", Code: "not-found"}
	if d != want {
		t.Errorf("got %+v", d)
	}
}

func TestCausesStayInside(t *testing.T) {
	const secret = "/var/lib/scafo/keys"
	for _, err := range []error{
		errors.New(secret),
		scafo.Wrap(errors.New(secret), scafo.CodeInternal, "detail with %s", secret),
		scafo.Wrap(errors.New(secret), scafo.CodeStoreUnavailable, "the bucket is away"),
		scafo.Wrap(errors.New(secret), "no-such-code", "%s", secret),
		scafo.Wrap(errors.New(secret), scafo.CodeAuthInvalid, "%s", secret),
	} {
		res, d, log := write(t, err)
		b, _ := json.Marshal(d)
		if strings.Contains(string(b), secret) {
			t.Errorf("%v: shown: %s", err, b)
		}
		if !strings.Contains(log, secret) {
			t.Errorf("%v: not logged: %s", err, log)
		}
		if d.Status == 500 {
			if d.Code != "internal" || len(d.Reference) != 16 || !strings.Contains(log, "reference="+d.Reference) {
				t.Errorf("%v: document %+v, log %s", err, d, log)
			}
		} else if d.Reference != "" {
			t.Errorf("%v: a reference", err)
		}
		_ = res
	}
}

// A call that fails for a reason of the node's is a warning; one that comes before the
// node is ready is none: there may be one each second, and the node said so itself.
func TestWhatIsAWarning(t *testing.T) {
	for _, c := range []struct {
		err  error
		warn bool
	}{
		{scafo.Wrap(errors.New("no route to host"), scafo.CodeStoreUnavailable, "the bucket is away"), true},
		{scafo.Errorf(scafo.CodeStoreUnavailable, "this node is starting"), false},
		{scafo.Errorf(scafo.CodeDraining, "the first pass is not done"), false},
		{scafo.Errorf(scafo.CodeNotFound, "no such application"), false},
	} {
		if _, _, log := write(t, c.err); strings.Contains(log, "level=WARN") != c.warn || !strings.Contains(log, "request refused") {
			t.Errorf("%v: %s", c.err, log)
		}
	}
}

// Nothing is wrong with a node that a caller leaves.
func TestACallerWhoLeavesIsNoError(t *testing.T) {
	for _, err := range []error{context.Canceled, scafo.Wrap(fmt.Errorf("get: %w", context.Canceled), scafo.CodeStoreUnavailable, "away")} {
		for _, left := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if left {
				cancel()
			}
			var log bytes.Buffer
			problem.Write(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil),
				slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})), err)
			if (log.Len() == 0) != left {
				t.Errorf("%v, the caller left %v: %s", err, left, &log)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	for code, want := range map[scafo.Code]struct{ name, value string }{
		scafo.CodeDeployOverloaded: {"Retry-After", "1"},
		scafo.CodeDraining:         {"Retry-After", "1"},
		scafo.CodeStoreUnavailable: {"Retry-After", "1"},
		scafo.CodeAuthInvalid:      {"WWW-Authenticate", "Bearer"},
		scafo.CodeNotFound:         {"Retry-After", ""},
		scafo.CodeAuthScope:        {"WWW-Authenticate", ""},
	} {
		res, _, _ := write(t, scafo.Errorf(code, "x"))
		if got := res.Header.Get(want.name); got != want.value {
			t.Errorf("%s: %s is %q, want %q", code, want.name, got, want.value)
		}
	}
}

func TestReadIsTheInverse(t *testing.T) {
	w := httptest.NewRecorder()
	problem.Write(w, httptest.NewRequest(http.MethodGet, "/", nil), slog.New(slog.DiscardHandler), scafo.Malformed("why"))
	e, d, ok := problem.Read(w.Body)
	if !ok || e.Code != scafo.CodeInvalidInput || e.Title != "Malformed request" || e.Detail != "why" || d.Status != 400 {
		t.Errorf("%+v %+v %v", e, d, ok)
	}
	for _, s := range []string{"", "<html>", "[]", "{}", `{"code":7}`} {
		if _, _, ok := problem.Read(strings.NewReader(s)); ok {
			t.Errorf("%q read as a problem", s)
		}
	}
}
