package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
)

// What a workload token said and what the artifact was stands in the list, and a
// deploy that waits says for what. What metadata claims is not taken for it.
func TestDeploysTable(t *testing.T) {
	now := time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC)
	digest := strings.Repeat("ab", 32)
	all := []scafo.Deploy{
		{
			DeployStatus: scafo.DeployStatus{ID: "shop.00000000000000a1", State: scafo.DeployAccepted, Step: "waiting for deploy shop.00000000000000a0"},
			Caller:       "repo:acme/shop:ref:refs/heads/main", Node: "node-a", AcceptedAt: now.Add(-3 * time.Second), ArtifactHash: digest,
			OIDC: &scafo.Provenance{Issuer: "https://issuer.example", Subject: "repo:acme/shop:ref:refs/heads/main", Repository: "acme/shop", Ref: "refs/heads/main", Commit: "c0ffee", Run: "42\x1b[2J"},
		},
		{
			DeployStatus: scafo.DeployStatus{ID: "shop.00000000000000a0", State: scafo.DeployFailed, Code: scafo.CodePublishFailed, Detail: "no main", Step: "publishing"},
			Caller:       "op", Node: "node-a", AcceptedAt: now.Add(-4 * time.Second),
			Source: &scafo.Source{Provider: "github", Repo: "forged/repo", Ref: "forged-ref", Commit: "forged-commit"},
		},
	}
	show := func(wide bool) []string {
		var b bytes.Buffer
		if err := deploysTable(&b, all, wide, now); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	narrow := show(false)
	if len(narrow) != 3 || !strings.HasSuffix(narrow[1], "3s ago    waiting for deploy shop.00000000000000a0") || !strings.HasSuffix(narrow[2], "no main") {
		t.Errorf("%q", narrow)
	}
	wide := show(true)
	for _, want := range []string{"acme/shop", "refs/heads/main", "c0ffee", "42", digest} {
		if !strings.Contains(wide[1], want) {
			t.Errorf("%q does not show %q", wide[1], want)
		}
	}
	if strings.Contains(strings.Join(wide, ""), "\x1b") || strings.Contains(wide[2], "forged") {
		t.Errorf("%q", wide)
	}
	b, err := json.Marshal(all[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"oidc":{"issuer":"https://issuer.example"`, `"repository":"acme/shop"`, `"ref":"refs/heads/main"`, `"commit":"c0ffee"`, `"artifactSha256":"` + digest + `"`, `"step":"waiting for deploy`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s does not have %s", b, want)
		}
	}
}
