package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/pipeline"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// What a deploy shows to the node: a key that is named; a workload token of the job, else
// one that is given, else one in a file; the profile's key; and with --oidc no key.
func TestWhatADeployShows(t *testing.T) {
	var shown string
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if claims, err := token.Parse(shown); err == nil {
			shown = "a token by the key of " + claims.KeyID
		}
		refuse(w, r, scafo.Errorf(scafo.CodeAuthInvalid, "shown"))
	}))
	t.Cleanup(node.Close)
	job := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer of-the-job" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"value": "of the job, for " + r.URL.Query().Get("audience")})
	}))
	t.Cleanup(job.Close)
	dir := t.TempDir()
	file, named := filepath.Join(dir, "token"), filepath.Join(dir, "named.jwk")
	if err := os.WriteFile(file, []byte("in a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := keyfile.New("named")
	if err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Save(named, k); err != nil {
		t.Fatal(err)
	}
	const (
		github = 1 << iota
		given
		inFile
		gitlab
	)
	folder := helloFolder(t)
	for _, tc := range []struct {
		has  int
		args string
		want string // what is shown, or what the error says
	}{
		{github | given | inFile, "", "of the job, for scafo-node"},
		{github | given | inFile, "--oidc --oidc-audience shop", "of the job, for shop"},
		{github | given | inFile, "--key-file " + named, "a token by the key of named"},
		{github | given | inFile, "--oidc --key-file " + named, "it takes no --key-file"},
		{given | inFile | gitlab, "", "given"},
		{given | inFile, "--oidc", "given"},
		{inFile, "", "in a file"},
		{inFile, "--oidc", "in a file"},
		{0, "", "a token by the key of op-1"},
		{gitlab, "", "a token by the key of op-1"},
		{0, "--oidc", "no job of GitHub Actions with the permission `id-token: write`"},
		{gitlab, "--oidc", "id_tokens: {SCAFO_OIDC_TOKEN: {aud: scafo-node}}"},
	} {
		t.Run(fmt.Sprintf("%04b %s", tc.has, tc.args), func(t *testing.T) {
			set := func(bit int, name, value string) {
				if tc.has&bit != 0 {
					t.Setenv(name, value)
				}
			}
			set(github, "ACTIONS_ID_TOKEN_REQUEST_URL", job.URL+"/?api-version=2")
			set(github, "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-job")
			set(given, pipeline.TokenVariable, "given")
			set(inFile, pipeline.FileVariable, file)
			set(gitlab, "GITLAB_CI", "true")
			shown = ""
			_, _, err := scafoFor(t, profile.Fleet{Nodes: []string{node.URL}}, append([]string{"deploy", folder}, strings.Fields(tc.args)...)...)
			if err == nil || shown != tc.want && (shown != "" || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("shown %q, error %v, want %q", shown, err, tc.want)
			}
		})
	}
}
