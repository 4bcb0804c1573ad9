package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/pipeline"
	"github.com/scafo/scafo/internal/profile"
)

// caller makes the client of a deploy: with the workload token of the job that this
// runs in, or with an operator's key. A key that was named wins, then a token that the
// environment has, then the profile's key; --oidc takes no key.
func (d *deployRun) caller() (*client.Client, profile.Fleet, error) {
	if d.g.keyFile != "" {
		if d.f.oidc {
			return nil, profile.Fleet{}, usagef("--oidc deploys with a workload token: it takes no --key-file")
		}
		return d.g.client()
	}
	source, err := pipeline.Find(os.Getenv, d.f.audience)
	if errors.Is(err, pipeline.ErrNone) && !d.f.oidc {
		return d.g.client() // and its advice
	}
	if err != nil {
		return nil, profile.Fleet{}, err
	}
	f := profile.Fleet{Nodes: d.g.nodes}
	if len(f.Nodes) == 0 {
		if f, err = d.g.target(); err != nil {
			return nil, f, err
		}
	}
	c, err := client.New(client.Config{URLs: f.Nodes, Credential: client.CredentialFunc(d.workload(source))})
	if err != nil {
		return nil, f, usageError{err}
	}
	return c, f, nil
}

// workload gives the job's token, and remembers whose it is for what a refusal says.
func (d *deployRun) workload(s *pipeline.Source) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		t, err := s.Token(ctx)
		if err != nil {
			return "", err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.presented = presented{source: s.Name}
		d.presented.issuer, d.presented.subject = pipeline.Describe(t)
		d.presented.expires = pipeline.Expiry(t)
		return t, nil
	}
}

// advised is an error with what to do about it.
type advised struct {
	error
	advice string
}

func (a advised) Unwrap() error { return a.error }

// presented is what a workload token that was sent says of itself.
type presented struct {
	source, issuer, subject string
	expires                 time.Time
}

// advise says with a refused workload token what would have it accepted.
func (d *deployRun) advise(err error) error {
	d.mu.Lock()
	p := d.presented
	d.mu.Unlock()
	if p.source == "" || err == nil {
		return err
	}
	app := d.pkg.Name
	switch scafo.CodeOf(err) {
	case scafo.CodeAuthInvalid:
		if !p.expires.IsZero() && time.Now().After(p.expires) {
			return advised{err, fmt.Sprintf("the workload token from %s expired at %s", p.source, p.expires.UTC().Format(time.RFC3339))}
		}
		return advised{err, fmt.Sprintf("the workload token from %s is of the issuer %q, subject %q: is it for the audience of a rule that `scafo trust show %s` lists?", p.source, p.issuer, p.subject, app)}
	case scafo.CodeTrustMismatch:
		return advised{err, fmt.Sprintf("to let it deploy: scafo trust set %s --issuer %s --subject %q", app, p.issuer, p.subject)}
	}
	return err
}
