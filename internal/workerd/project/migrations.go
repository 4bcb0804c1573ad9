package project

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

// The migrations of D1 databases, as Wrangler has them by default.
const (
	defaultTable = "d1_migrations"
	maxMigration = 1 << 20 // bytes of one file
	// maxMigrations bounds those of all databases, in bytes: a node reads them all at
	// each start.
	maxMigrations = 8 << 20
)

// database is what an item of d1_databases says of its migrations.
type database struct {
	id    string
	at    *wrangler.Value // the item
	dir   string
	named bool // dir was given; else it is the default
	table string
}

// migrations reads those of every database. A directory that is not there has none, and
// neither has one that is named "". The default directory counts where there is one
// database alone: with several it cannot be said whose it is.
func (p *Project) migrations() ([]layout.Migrations, error) {
	var out []layout.Migrations
	seen := map[string]string{} // directory by database
	total := 0
	for _, d := range p.Config.databases {
		dir := d.dir
		if !d.named {
			dir = wrangler.MigrationsDir
		}
		before, again := seen[d.id]
		switch {
		case dir == "" || !d.named && (again || p.databases() > 1) || again && before == dir:
			continue
		case again:
			return nil, d.at.Errorf("the D1 database %q has migrations in %q and in %q", d.id, before, dir)
		case d.table == "":
			return nil, d.at.Errorf("migrations_table is empty")
		}
		seen[d.id] = dir
		files, err := p.readMigrations(dir)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			total += len(f.SQL)
		}
		if total > maxMigrations {
			return nil, fmt.Errorf("the migrations have more than %d MiB", maxMigrations>>20)
		}
		if len(files) > 0 {
			out = append(out, layout.Migrations{Database: d.id, Table: d.table, Files: files})
		}
	}
	return out, nil
}

// databases is how many there are.
func (p *Project) databases() int {
	ids := map[string]bool{}
	for _, d := range p.Config.databases {
		ids[d.id] = true
	}
	return len(ids)
}

// readMigrations reads the files of a directory of the project.
func (p *Project) readMigrations(dir string) ([]layout.Migration, error) {
	real, err := p.inside(filepath.Join(p.Dir, filepath.FromSlash(dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("migrations_dir %q: %w", dir, err)
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		return nil, fmt.Errorf("migrations_dir %q: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	var out []layout.Migration
	for _, name := range wrangler.Migrations(names) {
		sql, err := p.readSmall(filepath.Join(real, name), maxMigration)
		if err != nil {
			return nil, err
		}
		out = append(out, layout.Migration{Name: name, SQL: sql})
	}
	return out, nil
}
