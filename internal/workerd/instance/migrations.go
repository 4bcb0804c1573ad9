package instance

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// The migrations of D1 databases are applied by a Worker of ours beside the
// application's, on a socket of its own: the databases are reached through the cluster
// like any other object, wherever they live.
const (
	serviceMigrations = "d1-migrations"
	migrationsSocket  = "migrations"
	// migrationsAnswer bounds what is read of its answer, in bytes.
	migrationsAnswer = 1 << 20
)

//go:embed migrations.js
var migrationsCode string

// ErrDatabaseAway says that a database could not be reached: another try may do it.
var ErrDatabaseAway = errors.New("a D1 database cannot be reached")

// MigrationError is a migration that its database refused.
type MigrationError struct {
	Database string
	File     string // empty: before the first
	Sentence string // the database's own
}

func (e *MigrationError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("the migrations of the D1 database %q: %s", e.Database, e.Sentence)
	}
	return fmt.Sprintf("the migration %s of the D1 database %q: %s", e.File, e.Database, e.Sentence)
}

// migrates reports whether it can apply migrations, and has any.
func (s *Spec) migrates() bool { return s.clustered() && len(s.Deployment.Migrations) > 0 }

// migrations are the Worker that applies them, and its socket.
func migrations(s *Spec) (service, socket node, err error) {
	m := s.Deployment.Manifest
	all, err := jsonBinding("MIGRATIONS", m.Migrations)
	bindings := []node{all}
	for i, d := range m.Migrations {
		to, derr := designator(serviceD1, "", map[string]string{"database": d.Database})
		err = errors.Join(err, derr)
		bindings = append(bindings, wrapped("DB"+strconv.Itoa(i), "cloudflare-internal:d1-api", to))
	}
	module := object(field{"name", text(serviceMigrations + ".js")}, field{"esModule", text(migrationsCode)})
	service = object(field{"name", text(serviceMigrations)}, field{"worker", object(field{"modules", list(module)},
		field{"compatibilityDate", text(servicesDate)}, field{"bindings", list(bindings...)})})
	socket = object(field{"name", text(migrationsSocket)}, field{"address", text("127.0.0.1:0")},
		field{"http", object()}, field{"service", text(serviceMigrations)})
	return service, socket, err
}

// Migrate applies the migrations that the databases do not have yet, each in a
// transaction of its own, and returns the names of those. It is called once Ready has
// returned. Whoever does the same elsewhere at the same time does no harm. The error is
// a *MigrationError, or wraps ErrDatabaseAway, or is of the call.
func (i *Instance) Migrate(ctx context.Context) (applied []string, err error) {
	if !i.spec.migrates() {
		return nil, nil
	}
	i.mu.Lock()
	addr := i.migrations
	i.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", http.NoBody)
	if err != nil {
		return nil, err
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDatabaseAway, err)
	}
	defer func() { _ = resp.Body.Close() }()
	var said struct {
		Applied               []string
		Database, File, Error string
		Away                  bool
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, migrationsAnswer))
	if err == nil {
		err = json.Unmarshal(body, &said)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDatabaseAway, err)
	case said.Away:
		return said.Applied, fmt.Errorf("%w: %s", ErrDatabaseAway, said.Error)
	case said.Error != "":
		return said.Applied, &MigrationError{Database: said.Database, File: said.File, Sentence: said.Error}
	}
	return said.Applied, nil
}
