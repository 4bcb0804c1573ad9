package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/bucket/qualify"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/registry"
)

// Waits between two looks at a bucket that does not answer yet.
const (
	storeRetryMin = 250 * time.Millisecond
	storeRetryMax = 5 * time.Second
)

// Store is an opened bucket, with what the runtimes need to open it themselves.
type Store struct {
	Bucket *meter.Bucket
	// Name says in a word where the bucket is, for people.
	Name string

	s3       *s3.Store
	target   celld.Target     // of the fleet's own prefix
	embedded *embedded.Handle // nil where the bucket is somebody else's
	keeper   *embedded.Keeper // nil but in a node that serves the bucket itself
	keep     func() *embedded.Keeper
}

// OpenStore opens the configured bucket, or finds or starts the embedded one.
func OpenStore(ctx context.Context, c *config.Loaded, executable string, log *slog.Logger) (*Store, error) {
	if c.Bucket.URL == "" {
		return openEmbedded(ctx, c.Node.State, executable, log)
	}
	name, prefix, err := c.Bucket.Parse()
	if err != nil {
		return nil, err
	}
	b, err := s3.Open(ctx, s3.Config{Bucket: name, Prefix: prefix, Endpoint: c.Bucket.Endpoint, Region: c.Bucket.Region, PathStyle: c.Bucket.PathStyle})
	if err != nil {
		return nil, err
	}
	return &Store{
		Bucket: meter.New(b), Name: c.Bucket.URL, s3: b,
		target: celld.Target{Bucket: name + "/" + prefix, Endpoint: c.Bucket.Endpoint, Region: b.Region()},
	}, nil
}

func openEmbedded(ctx context.Context, state, executable string, log *slog.Logger) (*Store, error) {
	o := embedded.Options{Log: log}
	e, handle, err := embedded.Ensure(ctx, state, executable, o)
	if err != nil {
		return nil, fmt.Errorf("the embedded store: %w", err)
	}
	b, err := s3.Open(ctx, s3.Config{
		Bucket: e.Bucket, Endpoint: e.URL, Region: e.Region, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(e.AccessKey, e.SecretKey, ""),
	})
	if err != nil {
		if handle.Started() {
			err = errors.Join(err, handle.Stop(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	return &Store{
		Bucket: meter.New(b), Name: "embedded", s3: b, embedded: handle,
		keep:   func() *embedded.Keeper { return embedded.Keep(state, executable, o, handle) },
		target: celld.Target{Bucket: e.Bucket + "/", Endpoint: e.URL, Region: e.Region},
	}, nil
}

// Embedded reports whether this machine serves the bucket itself.
func (s *Store) Embedded() bool { return s.embedded != nil }

// Target is where the objects of one life of an application lie.
func (s *Store) Target(application, uid string) celld.Target {
	t := s.target
	t.Bucket += registry.RuntimePrefix(application, uid)
	return t
}

// Credentials are keys that are good for some minutes at least: a deploy's, which
// shall see no more of this machine than that.
func (s *Store) Credentials(ctx context.Context) (celld.Credentials, error) {
	access, secret, session, _, err := s.s3.Credentials(ctx)
	if err != nil {
		return celld.Credentials{}, err
	}
	return celld.Credentials{AccessKey: access, SecretKey: secret, SessionToken: session, Region: s.target.Region}, nil
}

// RuntimeCredentials are what a runtime signs with for as long as it runs: the way
// to a role, which it fetches and renews itself, where this node was given one; keys
// otherwise.
func (s *Store) RuntimeCredentials(ctx context.Context) (celld.Credentials, error) {
	source, err := s.s3.Source(ctx)
	if err != nil {
		return celld.Credentials{}, err
	}
	way := map[s3.Source]string{s3.SourceWebToken: "AWS_WEB_IDENTITY_TOKEN_FILE", s3.SourceContainer: "AWS_CONTAINER_CREDENTIALS_"}[source]
	roles := map[string]string{}
	led := source == s3.SourceInstance
	for _, name := range celld.RoleVariables {
		if v := os.Getenv(name); v != "" {
			roles[name] = v
			led = led || way != "" && strings.HasPrefix(name, way)
		}
	}
	if !led {
		// A role of a profile, say, which a runtime does not read.
		return s.Credentials(ctx)
	}
	return celld.Credentials{Region: s.target.Region, Roles: roles}, nil
}

// Prove waits until the bucket answers, and refuses one that ignores conditions.
// A bucket that is away is said once, not at each try; tell, which may be nil, is called
// then, and when it is back.
func (s *Store) Prove(ctx context.Context, log *slog.Logger, tell func(away bool)) error {
	if tell == nil {
		tell = func(bool) {}
	}
	wait := storeRetryMin
	for said := false; ; {
		err := qualify.Prove(meter.With(ctx, "qualify"), s.Bucket, registry.ProbePrefix)
		if err == nil {
			if said {
				log.Info("the bucket answers", "bucket", s.Name)
				tell(false)
			}
			return nil
		}
		if !away(err) {
			return fmt.Errorf("the bucket %s: %w", s.Name, err)
		}
		if !said {
			log.Warn("the bucket does not answer; waiting for it", "bucket", s.Name, "cause", err)
			said = true
			tell(true)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(wait*2, storeRetryMax)
	}
}

// away reports whether an error says that the store is not there now, which passes,
// and not that it refuses.
func away(err error) bool {
	return errors.Is(err, bucket.ErrUnavailable) || errors.Is(err, bucket.ErrUnknown)
}

// Keep starts the embedded store again, if there is one, whenever it ends before
// StopEmbedded or Release.
func (s *Store) Keep() {
	if s.keep != nil {
		s.keeper = s.keep()
	}
}

// Release leaves the embedded store, if there is one, to whoever comes next.
func (s *Store) Release() {
	if s.keeper != nil {
		s.keeper.Release()
	}
}

// StopEmbedded ends the embedded store, if there is one: the last thing of all. What
// it acknowledged is on disk, so that it is killed once hurry has ended.
func (s *Store) StopEmbedded(ctx, hurry context.Context) error {
	stop, kill := func(context.Context) error { return nil }, func(context.Context) error { return nil }
	switch {
	case s.keeper != nil:
		stop, kill = s.keeper.Stop, s.keeper.Kill
	case s.embedded != nil:
		stop, kill = s.embedded.Stop, s.embedded.Kill
	}
	s.s3.Close() // it waits for connections that are open, idle ones too
	if hurry.Err() != nil {
		return kill(ctx)
	}
	defer context.AfterFunc(hurry, func() { _ = kill(ctx) })() // stop below tells
	return stop(ctx)
}

// Close gives the store back after a command's own use: an embedded one ends where
// this process started it, and goes on where it was running.
func (s *Store) Close(ctx context.Context) {
	if s.embedded != nil && s.embedded.Started() {
		_ = s.embedded.Stop(ctx) // it ends by itself at the next chance
	}
}
