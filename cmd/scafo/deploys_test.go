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
			DeployStatus: scafo.DeployStatus{ID: "shop.00000000000000a1", State: scafo.DeployAccepted, Step: "waiting for deploy shop.00000000000000a0", ArtifactHash: digest,
				OIDC: &scafo.Provenance{Issuer: "https://issuer.example", Subject: "repo:acme/shop:ref:refs/heads/main", Repository: "acme/shop", Ref: "refs/heads/main", Commit: "c0ffee", Run: "42\x1b[2J"}},
			Caller: "repo:acme/shop:ref:refs/heads/main", Node: "node-a", AcceptedAt: now.Add(-3 * time.Second),
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

// One deploy shows what its job's token said and what the artifact was. A claim is a
// cell of its line: it can neither add a line nor command the terminal.
func TestShowDeploy(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	show := func(s scafo.DeployStatus) string {
		var b bytes.Buffer
		showDeploy(&b, s)
		return b.String()
	}
	s := scafo.DeployStatus{
		ID: "shop.00000000000000a1", Application: "shop", State: scafo.DeployDeployed, Deployment: "v1",
		Nodes: []scafo.DeployNode{{Node: "node-a", Version: "v1"}}, ArtifactHash: digest, ArtifactSize: 1234,
	}
	const head = "deploy       shop.00000000000000a1\napplication  shop\nstate        deployed\ndeployment   v1\n"
	artifact := "artifact     sha256:" + digest + " (1234 bytes)\n"
	const node = "node         node-a serves v1\n"
	if got := show(s); got != head+artifact+node {
		t.Errorf("an operator's deploy: %q", got)
	}
	s.OIDC = &scafo.Provenance{
		Issuer: "https://issuer.example", Subject: "repo:acme/shop:ref:refs/heads/main",
		Repository: "acme/shop", Ref: "refs/heads/main\nrun          1", Commit: "c0ffee", Run: "42\x1b[2J",
	}
	const said = "issuer       https://issuer.example\nsubject      repo:acme/shop:ref:refs/heads/main\nrepository   acme/shop\n" +
		"ref          refs/heads/main\\nrun          1\ncommit       c0ffee\nrun          42\\x1b[2J\n"
	if got := show(s); got != head+artifact+said+node {
		t.Errorf("a pipeline's deploy: %q", got)
	}
	s.OIDC = &scafo.Provenance{Issuer: "https://issuer.example", Subject: "a job"}
	if got := show(s); got != head+artifact+"issuer       https://issuer.example\nsubject      a job\n"+node {
		t.Errorf("of an issuer that says no more: %q", got)
	}
}
