package check_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry/check"
)

// claim is the document of a claim, with its state and what follows that.
func claim(host, app, uid, state string) string {
	return fmt.Sprintf(`{"v":1,"write":"w-%s","host":%q,"application":%q,"uid":%q,"at":"2026-01-02T03:04:05Z","state":%s}`, host, host, app, uid, state)
}

func TestWhatIsWrongWithClaims(t *testing.T) {
	const app = `{"v":1,"write":"w","name":"shop","uid":"0123456789abcdef","replicas":1%s}`
	for name, c := range map[string]struct {
		objects map[string]string
		want    string
	}{
		"a host, twice": {map[string]string{"_scafo/applications/shop.json": fmt.Sprintf(app, `,"domains":[{"host":"a.example"},{"host":"a.example"}]`)}, "lists a.example twice"},
		"a former life's claim": {map[string]string{
			"_scafo/applications/shop.json": fmt.Sprintf(app, `,"domains":[{"host":"a.example"}]`), "_scafo/domains/example/a.json": claim("a.example", "shop", "ffffffffffffffff", `"held"`),
		}, "lists a.example, which it does not hold"},
		"subdomains that are not held": {map[string]string{
			"_scafo/applications/shop.json": fmt.Sprintf(app, `,"domains":[{"host":"a.example","wildcard":true}]`), "_scafo/domains/example/a.json": claim("a.example", "shop", "0123456789abcdef", `"held"`),
		}, "lists the subdomains of a.example"},
		"two that exclude each other": {map[string]string{
			"_scafo/domains/example/a.json": claim("a.example", "shop", "0123456789abcdef", `"held","wildcard":true`), "_scafo/domains/example/a/x.json": claim("x.a.example", "other", "0123456789abcdef", `"held"`),
		}, "exclude each other"},
		"a claim of no host":      {map[string]string{"_scafo/domains/1/1.json": claim("1.1", "shop", "0123456789abcdef", `"held"`)}, "is of host"},
		"a claim of nobody":       {map[string]string{"_scafo/domains/example/a.json": claim("a.example", "", "x", `"held"`)}, "is of application"},
		"a claim's state":         {map[string]string{"_scafo/domains/example/a.json": claim("a.example", "shop", "0123456789abcdef", `"what"`)}, "has state"},
		"a pending claim's doubt": {map[string]string{"_scafo/domains/example/a.json": claim("a.example", "shop", "0123456789abcdef", `"pending","doubted":true`)}, "doubted true"},
	} {
		b := memory.New()
		for k, body := range c.objects {
			if _, err := b.Put(t.Context(), k, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		problems, err := check.All(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(problems, "\n"), c.want) {
			t.Errorf("%s: found %q, want %q", name, problems, c.want)
		}
	}
}

func TestSettled(t *testing.T) {
	const app = `{"v":1,"write":"w","name":"shop","uid":"0123456789abcdef","replicas":1,"domains":[{"host":"a.example","wildcard":true}]}`
	for state, settled := range map[string]bool{
		`"held","wildcard":true`: true, `"released"`: true, `"pending","wildcard":true`: false, `"held"`: false,
		`"held","wildcard":true,"doubted":true`: false, `"held","wildcard":true,"pendingWildcard":true`: false,
	} {
		b := memory.New()
		for k, body := range map[string]string{"_scafo/applications/shop.json": app, "_scafo/domains/example/a.json": claim("a.example", "shop", "0123456789abcdef", state)} {
			if _, err := b.Put(t.Context(), k, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		var r recorder
		check.Settled(&r, b)
		if (len(r.said) == 0) != settled {
			t.Errorf("%s: %v", state, r.said)
		}
	}
}

// recorder is a test that only notes what fails.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}
