package pack

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const goesAlong = ": what it does not have yet is applied before the new version serves (--no-migrations leaves that to you)"

// The migrations of D1 databases are packed where the configuration that is sent says.
func TestMigrationsArePacked(t *testing.T) {
	one := `"d1_databases": [{"binding": "DB", "database_name": "shop", "database_id": "1"%s}],`
	item := func(more string) string { return strings.Replace(one, "%s", more, 1) }
	files := project{"migrations/0001_a.sql": "A", "migrations/2_b.sql": "B", "migrations/meta/x.json": "{}", "db/1.sql": "C", "src/a.js": worker}
	for name, c := range map[string]struct {
		config string
		o      Options
		packed []string // beside the Worker and the configuration
		dirs   []any    // migrations_dir that is sent, of each database
		notes  []string
	}{
		"the default":   {item(""), Options{}, []string{"migrations/0001_a.sql", "migrations/2_b.sql"}, []any{nil}, []string{"2 migrations of the D1 database shop" + goesAlong}},
		"a directory":   {item(`, "migrations_dir": "./db/"`), Options{}, []string{"db/1.sql"}, []any{"db"}, []string{"1 migration of the D1 database shop" + goesAlong}},
		"left to users": {item(""), Options{NoMigrations: true}, nil, []any{""}, nil},
		"none wanted":   {item(`, "migrations_dir": ""`), Options{}, nil, []any{""}, nil},
		"a pattern": {
			item(`, "migrations_pattern": "db/**/*.sql"`), Options{}, nil, []any{""},
			[]string{"the migrations of the D1 database shop are not applied: migrations_pattern is not read, name their directory in migrations_dir"},
		},
		"several databases": {
			`"d1_databases": [{"binding": "A", "database_name": "a"}, {"binding": "B", "database_name": "b", "migrations_dir": "db"}],`, Options{},
			[]string{"db/1.sql"}, []any{nil, "db"},
			[]string{"migrations/ is not applied to the D1 database a, since there are several: say whose it is with migrations_dir", "1 migration of the D1 database b" + goesAlong},
		},
		"two bindings of one": {
			`"d1_databases": [{"binding": "A", "database_id": "1", "database_name": "shop"}, {"binding": "B", "database_id": "1", "migrations_dir": "migrations"}],`, Options{},
			[]string{"migrations/0001_a.sql", "migrations/2_b.sql"}, []any{nil, "migrations"},
			[]string{"2 migrations of the D1 database shop" + goesAlong, "2 migrations of the D1 database 1" + goesAlong},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := run(t, files.with(project{"wrangler.jsonc": settings(c.config)}), c.o)
			got := slices.DeleteFunc(paths(p), func(s string) bool { return s == "wrangler.jsonc" || s == "src/a.js" })
			if !slices.Equal(got, c.packed) {
				t.Errorf("packed %q, want %q", got, c.packed)
			}
			dirs := []any{}
			for _, d := range sent(t, p)["d1_databases"].([]any) {
				dirs = append(dirs, d.(map[string]any)["migrations_dir"])
			}
			if !reflect.DeepEqual(dirs, c.dirs) {
				t.Errorf("sent %q, want %q", dirs, c.dirs)
			}
			if !slices.Equal(p.Notes, c.notes) {
				t.Errorf("notes %q, want %q", p.Notes, c.notes)
			}
		})
	}
}

// Migrations that lie outside of the folder, or behind a link, are sent in a directory of
// their own.
func TestMigrationsFromElsewhere(t *testing.T) {
	dir := files(t, map[string]string{"db/1.sql": "one", "app/src/a.js": worker})
	config := settings(`"d1_databases": [{"binding": "A", "database_name": "a", "migrations_dir": "../db"}, {"binding": "B", "database_name": "b", "migrations_dir": "link"}],`)
	if err := os.WriteFile(filepath.Join(dir, "app", "wrangler.jsonc"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "db"), filepath.Join(dir, "app", "link")); err != nil {
		t.Fatal(err)
	}
	p, err := Run(t.Context(), Options{Path: filepath.Join(dir, "app")})
	if err != nil {
		t.Fatal(err)
	}
	all := contents(t, p)
	for i, d := range sent(t, p)["d1_databases"].([]any) {
		at, _ := d.(map[string]any)["migrations_dir"].(string)
		if want := "scafo-migrations/" + string(rune('0'+i)); at != want || all[at+"/1.sql"] != "one" {
			t.Errorf("%q: %v", at, paths(p))
		}
	}
	_, err = Run(t.Context(), Options{Path: project{"src/a.js": worker, "wrangler.jsonc": settings(`"d1_databases": [{"binding": "A", "migrations_dir": "nowhere"}],`)}.write(t)})
	if err == nil || !strings.HasSuffix(err.Error(), `migrations_dir "nowhere" cannot be read: is it there?`) || !strings.HasPrefix(err.Error(), "wrangler.jsonc:") {
		t.Errorf("%v", err)
	}
}

func files(t *testing.T, all map[string]string) string { return project(all).write(t) }
