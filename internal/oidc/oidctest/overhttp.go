package oidctest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// AttackNode makes the attacks on a node at a base URL, on an application whose policy
// admits the target's subject alone; another application has no policy. Whatever does not
// hold up is answered with the very document of a request without a token.
func (x *Target) AttackNode(t testing.TB, node, application, other string) {
	t.Helper()
	n := &attacked{t: t, url: node}
	defer n.client.CloseIdleConnections()
	now := time.Now()
	deploys, poll := "/v1/applications/%s/deploys", "/v1/deploys/%s.0123456789abcdef"
	status, refused, header := n.do(http.MethodGet, fmt.Sprintf(poll, application))
	if status != http.StatusUnauthorized || header.Get("Content-Type") != "application/problem+json" || code(refused) != "auth-invalid" {
		t.Fatalf("without a token: %d %s", status, refused)
	}
	for name, good := range x.Good(t, now) { // the deploy is none that there is
		if status, body, _ := n.do(http.MethodGet, fmt.Sprintf(poll, application), good); status != http.StatusNotFound {
			t.Fatalf("the good token with %s: %d %s", name, status, body)
		}
		n.refuses("the good token on another application", refused, http.MethodPost, fmt.Sprintf(deploys, other), good)
		n.refuses("the good token twice", refused, http.MethodPost, fmt.Sprintf(deploys, application), good, good)
		n.refuses("the good token behind another header", refused, http.MethodPost, fmt.Sprintf(deploys, application), "x", good)
	}
	for _, a := range x.Attacks(t, now) {
		switch {
		case a.Mismatch:
			n.mismatches(a.Name, http.MethodPost, fmt.Sprintf(deploys, application), a.Bearer)
			n.mismatches(a.Name, http.MethodGet, fmt.Sprintf(poll, application), a.Bearer)
		case a.Header():
			n.refuses(a.Name, refused, http.MethodPost, fmt.Sprintf(deploys, application), a.Bearer)
			n.refuses(a.Name, refused, http.MethodGet, fmt.Sprintf(poll, application), a.Bearer)
		case strings.ContainsAny(a.Bearer, "\r\n\x00"):
			n.malformed(a.Name, fmt.Sprintf(poll, application), a.Bearer)
		}
	}
	x.Quiet(t)
}

type attacked struct {
	t      testing.TB
	url    string
	client http.Client
}

// do is a request with a header for each token.
func (n *attacked) do(method, path string, bearers ...string) (status int, body []byte, header http.Header) {
	n.t.Helper()
	var content io.Reader
	if method == http.MethodPost {
		content = strings.NewReader("an artifact")
	}
	r, err := http.NewRequest(method, n.url+path, content)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, b := range bearers {
		r.Header.Add("Authorization", "Bearer "+b)
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	r.Header.Set("X-Scafo-Deploy", "e30")
	res, err := n.client.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(res.Body); err != nil {
		n.t.Fatal(err)
	}
	return res.StatusCode, body, res.Header
}

func code(document []byte) string {
	var d struct{ Code string }
	_ = json.Unmarshal(document, &d)
	return d.Code
}

func (n *attacked) refuses(name string, want []byte, method, path string, bearers ...string) {
	n.t.Helper()
	status, body, header := n.do(method, path, bearers...)
	if status != http.StatusUnauthorized || header.Get("Content-Type") != "application/problem+json" || !bytes.Equal(body, want) {
		n.t.Errorf("%s %s, %s: %d %s, want 401 %s", method, path, name, status, body, want)
	}
}

func (n *attacked) mismatches(name, method, path, bearer string) {
	n.t.Helper()
	status, body, header := n.do(method, path, bearer)
	if status != http.StatusForbidden || header.Get("Content-Type") != "application/problem+json" || code(body) != "trust-mismatch" {
		n.t.Errorf("%s %s, %s: %d %s, want 403 trust-mismatch", method, path, name, status, body)
	}
}

// malformed sends a token that no header carries as it is; the request is no HTTP then.
func (n *attacked) malformed(name, path, bearer string) {
	n.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n\r\n", path, bearer); err != nil {
		n.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		n.t.Errorf("%s: %d", name, res.StatusCode)
	}
}
