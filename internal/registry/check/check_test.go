package check_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry/check"
)

// Each of these is one thing that must never be in a bucket.
func TestWhatIsFound(t *testing.T) {
	const app = `{"v":1,"write":"n1","name":"shop","uid":"0123456789abcdef","replicas":1,"deploySeq":2%s}`
	for name, c := range map[string]struct {
		objects map[string]string
		want    string
	}{
		"an unknown place":    {map[string]string{"_scafo/what": `{}`}, "belongs to nothing"},
		"no document":         {map[string]string{"_scafo/freeze.json": `{`}, "not a document"},
		"a newer one":         {map[string]string{"_scafo/freeze.json": `{"v":2}`}, "newer release"},
		"no nonce":            {map[string]string{"_scafo/freeze.json": `{"v":1}`}, "no write nonce"},
		"one nonce, twice":    {map[string]string{"_scafo/freeze.json": `{"v":1,"write":"n1"}`, "_scafo/applications/shop.json": fmt.Sprintf(app, "")}, "same write nonce"},
		"another's key":       {map[string]string{"_scafo/applications/other.json": fmt.Sprintf(app, "")}, "belongs at _scafo/applications/shop.json"},
		"no deployment":       {map[string]string{"_scafo/applications/shop.json": fmt.Sprintf(app, `,"deployment":"v9"`)}, "has no record"},
		"a seq from nowhere":  {map[string]string{"_scafo/applications/shop.json": fmt.Sprintf(app, `,"deploymentSeq":3`)}, "is at deploy 2"},
		"a host of nobody":    {map[string]string{"_scafo/applications/shop.json": fmt.Sprintf(app, `,"domains":[{"host":"a.example"}]`)}, "does not hold"},
		"an unclaimed node":   {map[string]string{"_scafo/nodes/n1.json": `{"v":1,"write":"w","id":"n1"}`}, "never claimed"},
		"a stray heartbeat":   {map[string]string{"_scafo/heartbeats/n1.json": `{"v":1,"write":"w","node":"n1"}`}, "no record"},
		"no admin":            {map[string]string{"_scafo/operators.json": `{"v":1,"write":"w","operators":{}}`}, "no admin"},
		"an index of nobody":  {map[string]string{"_scafo/operators.json": `{"v":1,"write":"w","operators":{"x":"admin"}}`}, "no record"},
		"a lease of nobody":   {map[string]string{"_scafo/coordinator.json": `{"v":1,"write":"w","node":"n1","fence":1,"seq":1}`}, "the lease"},
		"a token's name":      {map[string]string{"_scafo/tokens/20260102T0304/x": ``}, "no key of a used token"},
		"a fence from above":  {map[string]string{"_scafo/coordinator.json": `{"v":1,"write":"a","fence":1,"seq":1}`, "_scafo/placements/shop/0123456789abcdef.json": `{"v":1,"write":"b","application":"shop","uid":"0123456789abcdef","nodes":[],"fence":2}`}, "has fence 2"},
		"one key, twice":      {map[string]string{"_scafo/revision.json": `{"v":1,"write":"w","counter":2,"changed":[{"n":1,"key":"k"},{"n":2,"key":"k"}]}`}, "twice"},
		"an announced token":  {map[string]string{"_scafo/revision.json": `{"v":1,"write":"w","counter":1,"changed":[{"n":1,"key":"_scafo/tokens/x"}]}`}, "announces"},
		"a failure of none":   {map[string]string{"_scafo/deploys/shop/0123456789abcdef.json": `{"v":1,"write":"w","id":"shop.0123456789abcdef","application":"shop","state":"failed","code":"what"}`}, "failed with code"},
		"a runtime of nobody": {map[string]string{"fleets/shop/x": ``}, "no life"},
		"a local time":        {map[string]string{"_scafo/freeze.json": `{"v":1,"write":"w","frozenAt":"2026-01-02T03:04:05+01:00"}`}, "not in UTC"},
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
	if problems, err := check.All(t.Context(), memory.New()); err != nil || len(problems) != 0 {
		t.Errorf("an empty bucket: %q, %v", problems, err)
	}
}
