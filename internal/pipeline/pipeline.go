// Package pipeline finds the workload token of the job that this process runs in.
package pipeline

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Variables of the environment that a token is found by.
const (
	// TokenVariable holds a token: GitLab's id_tokens put one there.
	TokenVariable = "SCAFO_OIDC_TOKEN" //nolint:gosec // a name
	// FileVariable names a file that holds one, and is read again for each request:
	// what writes it may renew it.
	FileVariable = "SCAFO_OIDC_TOKEN_FILE"
	// GitHub Actions gives a job with `id-token: write` these two.
	githubURL   = "ACTIONS_ID_TOKEN_REQUEST_URL"
	githubToken = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
	// gitlab is "true" in the jobs of GitLab, whose tokens are in the variable that the
	// job's id_tokens name.
	gitlab = "GITLAB_CI"
)

const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 64 << 10
	// renewBefore is how long before its end a token is asked for anew.
	renewBefore = 60 * time.Second
)

// Source gives the token of a job. It is a credential of package client.
type Source struct {
	// Name says where the token comes from, for people.
	Name  string
	token func(ctx context.Context) (string, error)
}

// Token returns a token that has not expired, where its source can give one.
func (s *Source) Token(ctx context.Context) (string, error) { return s.token(ctx) }

// ErrNone says that this is no job with a workload token.
var ErrNone = errors.New("no workload token here")

// Find looks for a token in the environment: of the job of GitHub Actions that this is,
// else a token that is given, else a file that holds one. A job's own token comes first:
// it is renewed, and of the audience that is asked for.
func Find(getenv func(string) string, audience string) (*Source, error) {
	if address, bearer := getenv(githubURL), getenv(githubToken); address != "" && bearer != "" {
		return fromGitHub(address, bearer, audience)
	}
	if t := strings.TrimSpace(getenv(TokenVariable)); t != "" {
		return &Source{Name: TokenVariable, token: func(context.Context) (string, error) { return t, nil }}, nil
	}
	if path := getenv(FileVariable); path != "" {
		return &Source{Name: FileVariable, token: func(context.Context) (string, error) { return readFile(path) }}, nil
	}
	if getenv(gitlab) == "true" {
		return nil, fmt.Errorf("%w: %s is not set; a job of GitLab gets it by `id_tokens: {%s: {aud: %s}}`", ErrNone, TokenVariable, TokenVariable, audience)
	}
	return nil, fmt.Errorf("%w: this is no job of GitHub Actions with the permission `id-token: write`, and %s and %s are not set", ErrNone, TokenVariable, FileVariable)
}

func fromGitHub(address, bearer, audience string) (*Source, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%s is no address", githubURL)
	}
	q := u.Query()
	q.Set("audience", audience)
	u.RawQuery = q.Encode()
	g := &github{url: u.String(), bearer: bearer, now: time.Now, http: &http.Client{
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	return &Source{Name: "GitHub Actions", token: g.token}, nil
}

func readFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", fmt.Errorf("%s holds no token", path)
	}
	return t, nil
}

// github asks GitHub's service for the tokens of this job.
type github struct {
	url, bearer string
	http        *http.Client
	now         func() time.Time

	mu      sync.Mutex // guards what follows
	last    string
	expires time.Time
}

func (g *github) token(ctx context.Context) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != "" && g.now().Add(renewBefore).Before(g.expires) {
		return g.last, nil
	}
	t, err := g.ask(ctx)
	if err != nil {
		return "", fmt.Errorf("ask GitHub Actions for a workload token: %w", err)
	}
	g.last, g.expires = t, Expiry(t)
	return t, nil
}

func (g *github) ask(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+g.bearer)
	req.Header.Set("Accept", "application/json")
	res, err := g.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its text would repeat the address with all its parameters
			err = u.Err
		}
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answered %d", res.StatusCode)
	}
	var answer struct {
		Value string `json:"value"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&answer); err != nil || answer.Value == "" {
		return "", errors.New("its answer holds no token")
	}
	return answer.Value, nil
}

// Expiry is when a token says that it expires; zero where it does not say. Nothing is
// verified.
func Expiry(token string) time.Time {
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if !claimsOf(token, &claims) || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}

// Describe says whom a token is of, for people who write a trust policy: its issuer
// and its subject. Nothing is verified.
func Describe(token string) (issuer, subject string) {
	var claims struct {
		Iss string `json:"iss"`
		Sub string `json:"sub"`
	}
	claimsOf(token, &claims)
	return claims.Iss, claims.Sub
}

func claimsOf(token string, to any) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	return err == nil && json.Unmarshal(b, to) == nil
}
