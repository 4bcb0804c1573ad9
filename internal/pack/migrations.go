package pack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/scafo/scafo/internal/wrangler"
)

// migrations packs the migrations of D1 databases, which are applied before the new
// version serves. The configuration that is sent says where they are.
func (p *Package) migrations() error {
	c := p.config
	list := c.doc.Field("d1_databases")
	if list == nil {
		return nil
	}
	ids := map[string]bool{}
	for _, item := range list.Items {
		ids[firstText(item, "database_id", "database_name", "binding")] = true
	}
	for i, item := range list.Items {
		name := firstText(item, "database_name", "database_id", "binding")
		dir := item.Field("migrations_dir")
		pattern := item.Field("migrations_pattern")
		item.Delete("migrations_pattern")
		switch {
		case p.noMigrations:
			setMember(item, "migrations_dir", "")
			continue
		case pattern != nil:
			p.Notes = append(p.Notes, fmt.Sprintf("the migrations of the D1 database %s are not applied: migrations_pattern is not read, name their directory in migrations_dir", name))
			setMember(item, "migrations_dir", "")
			continue
		case dir == nil && len(ids) > 1:
			p.Notes = append(p.Notes, c.unclaimed(name)...)
			continue
		}
		if err := p.migrationsOf(i, item, dir, name); err != nil {
			return err
		}
	}
	return nil
}

// firstText is the first of an item's keys that says something. A database is known by
// its id, its name or its binding, whichever there is.
func firstText(item *wrangler.Value, keys ...string) string {
	for _, key := range keys {
		if v := item.Field(key); v != nil {
			if s, err := v.Text(key); err == nil && s != "" {
				return s
			}
		}
	}
	return ""
}

func setMember(item *wrangler.Value, key, to string) { item.Set(key, wrangler.Made(to, item)) }

// unclaimed says that nobody knows whose migrations the default directory has.
func (c *config) unclaimed(name string) []string {
	if _, err := os.Stat(filepath.Join(c.home(), wrangler.MigrationsDir)); err != nil {
		return nil
	}
	return []string{fmt.Sprintf("%s/ is not applied to the D1 database %s, since there are several: say whose it is with migrations_dir", wrangler.MigrationsDir, name)}
}

// home is the directory of the user's own configuration, from which migrations_dir
// starts also where a build tool made another one.
func (c *config) home() string {
	if c.redirected {
		return c.root
	}
	return c.base
}

// migrationsOf packs the migrations of one database.
func (p *Package) migrationsOf(i int, item, at *wrangler.Value, name string) error {
	c := p.config
	dir := wrangler.MigrationsDir
	if at != nil {
		var err error
		if dir, err = at.Text("migrations_dir"); err != nil || dir == "" {
			return err
		}
	}
	from := filepath.FromSlash(dir)
	if !filepath.IsAbs(from) {
		from = filepath.Join(c.home(), from)
	}
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) && at == nil {
		return nil
	}
	if err != nil {
		if at == nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		return at.Errorf("migrations_dir %q cannot be read: is it there?", dir)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	names = wrangler.Migrations(names)
	to, err := filepath.Rel(c.root, from)
	to = filepath.ToSlash(to)
	if err != nil || !filepath.IsLocal(to) || throughLink(from) {
		to = path.Join(c.free(sqlDir), strconv.Itoa(i))
	}
	for _, n := range names {
		rel := path.Join(to, n)
		if slices.ContainsFunc(p.Files, func(f File) bool { return f.Path == rel }) {
			continue // the Worker imports it too
		}
		source, err := filepath.EvalSymlinks(filepath.Join(from, n))
		if err != nil {
			return err
		}
		if err := p.add(rel, source); err != nil {
			return err
		}
	}
	if at != nil || to != wrangler.MigrationsDir {
		setMember(item, "migrations_dir", to)
	}
	if len(names) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s of the D1 database %s: what it does not have yet is applied before the new version serves (--no-migrations leaves that to you)", counted(len(names), "migration"), name))
	}
	return nil
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// throughLink reports whether a link lies on the way to a directory: an artifact has none.
func throughLink(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	return err != nil || real != filepath.Clean(dir)
}
