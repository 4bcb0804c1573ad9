package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
	"github.com/scafo/scafo/internal/profile"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/token/keyfile"
)

// defaultOperator is the id of a fleet's first admin unless told otherwise.
const defaultOperator = "admin"

func newInit(g *globals) *cobra.Command {
	var operator, keyFile, name string
	c := &cobra.Command{
		Use: "init", Short: "Create a fleet in a bucket, with its first admin key",
		Long: "Create a fleet in the configured bucket and make the key of its first admin, on this machine.\nA bucket that holds a fleet is left as it is.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := loadConfig(c, nil)
			if err != nil {
				return err
			}
			log := node.Logger(config.Log{Level: "warn", Format: "text"}, os.Stderr)
			store, err := openStore(c.Context(), l, log)
			if err != nil {
				return err
			}
			defer store.close()
			made, err := createFleet(c.Context(), store.registry, operator, keyFile)
			if err != nil {
				return err
			}
			if err := remember(name, made, profile.Fleet{Nodes: []string{l.Node.Advertise}, State: l.Node.State}); err != nil {
				return err
			}
			if g.json {
				return printJSON(c.OutOrStdout(), map[string]string{"fleet": made.fleet.ID, "operator": made.key.ID, "keyFile": made.keyFile})
			}
			fmt.Fprintf(c.OutOrStdout(), "fleet %s is in %s\nadmin %s, key %s\nnext: scafo sail, on each machine\n", made.fleet.ID, store.name, made.key.ID, made.keyFile)
			return nil
		},
	}
	addConfig(c)
	c.Flags().StringVar(&operator, "operator", defaultOperator, "id of the first admin")
	c.Flags().StringVar(&keyFile, "key-file", "", "where its private key is written (default: the user's configuration directory)")
	c.Flags().StringVar(&name, "fleet", "main", "name of the fleet in the profile")
	return c
}

// madeFleet is what createFleet leaves.
type madeFleet struct {
	fleet   scafo.Fleet
	key     keyfile.Key
	keyFile string
}

// createFleet makes the first admin's key and the fleet. The key is on disk before
// the fleet exists: a fleet whose only key was lost could never be used.
func createFleet(ctx context.Context, r *registry.Registry, operator, path string) (madeFleet, error) {
	var m madeFleet
	if _, err := scafo.ParseID("operator", operator); err != nil {
		return m, usageError{err}
	}
	k, err := keyfile.New(operator)
	if err != nil {
		return m, err
	}
	if path == "" {
		dir, err := profile.Path()
		if err != nil {
			return m, err
		}
		path = filepath.Join(filepath.Dir(dir), "keys", operator+"-"+r.Nonce(4)+".jwk")
	}
	if path, err = filepath.Abs(path); err != nil {
		return m, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return m, err
	}
	// A key file of an init that was cut short is used again.
	if old, _, err := keyfile.Load(path); err == nil && old.ID == operator {
		k = old
	} else if errors.Is(err, fs.ErrNotExist) {
		if err := keyfile.Save(path, k); err != nil {
			return m, err
		}
		defer func() {
			if m.fleet.ID == "" {
				os.Remove(path) // no fleet knows this key
			}
		}()
	} else if err != nil {
		return m, err
	} else {
		return m, usagef("the key file %s belongs to operator %q", path, old.ID)
	}
	f, err := r.InitFleet(ctx, scafo.Operator{ID: operator, PublicKey: k.Public(), Role: scafo.RoleAdmin, Applications: scafo.Scope{"*"}})
	if err != nil {
		return m, err
	}
	m = madeFleet{fleet: f, key: k, keyFile: path}
	return m, nil
}

// remember writes the fleet into the profile, so that the next command needs no flags.
func remember(name string, m madeFleet, f profile.Fleet) error {
	p, err := profile.Load()
	if err != nil {
		return err
	}
	f.ID, f.Key = m.fleet.ID, m.keyFile
	p.Set(name, f)
	return p.Save()
}

// directStore is a bucket that a command opened for itself.
type directStore struct {
	registry *registry.Registry
	name     string
	close    func()
}

// wantStore refuses a command that only looks where there is nothing to look at: a
// state directory without a store would get an empty one.
func wantStore(l *config.Loaded) error {
	if l.Bucket.URL != "" {
		return nil
	}
	state, err := stateOf(l, "")
	if err != nil {
		return err
	}
	l.Node.State = state
	if _, err := os.Stat(filepath.Join(l.Node.State, "bucket")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no bucket is configured, and the state directory %s has none: give --bucket-url, or --node-state as the node has it", l.Node.State)
	}
	return nil
}

// openStore opens the configured bucket for one command. An embedded store that
// nobody serves at the moment is served for the command's own time.
func openStore(ctx context.Context, l *config.Loaded, log *slog.Logger) (*directStore, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s, err := node.OpenStore(ctx, l, exe, log)
	if err != nil {
		return nil, err
	}
	d := &directStore{name: s.Name, close: func() { s.Close(context.WithoutCancel(ctx)) }}
	if err := s.Prove(ctx, log, nil); err != nil {
		d.close()
		return nil, err
	}
	d.registry = registry.New(s.Bucket, registry.Options{Log: log, Node: "cli"})
	return d, nil
}
