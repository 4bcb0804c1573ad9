package project

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/layout"
)

func TestReadsMigrations(t *testing.T) {
	files := map[string]string{
		"a.js": "export default {}", "migrations/2.sql": "\xef\xbb\xbfB", "migrations/1.sql": "A", "migrations/notes.md": "no",
		"other/1.sql": "C", "empty/x.md": "",
	}
	for name, c := range map[string]struct {
		databases string
		want      []layout.Migrations
	}{
		"the default":    {`{"binding": "DB", "database_id": "1"}`, []layout.Migrations{{Database: "1", Table: "d1_migrations", Files: []layout.Migration{{Name: "1.sql", SQL: "A"}, {Name: "2.sql", SQL: "B"}}}}},
		"named":          {`{"binding": "DB", "migrations_dir": "other", "migrations_table": "t"}`, []layout.Migrations{{Database: "DB", Table: "t", Files: []layout.Migration{{Name: "1.sql", SQL: "C"}}}}},
		"none":           {`{"binding": "DB", "migrations_dir": ""}`, nil},
		"not there":      {`{"binding": "DB", "migrations_dir": "nowhere"}`, nil},
		"without files":  {`{"binding": "DB", "migrations_dir": "empty"}`, nil},
		"several":        {`{"binding": "A"}, {"binding": "B", "migrations_dir": "other"}`, []layout.Migrations{{Database: "B", Table: "d1_migrations", Files: []layout.Migration{{Name: "1.sql", SQL: "C"}}}}},
		"one, two names": {`{"binding": "A", "database_id": "1", "migrations_dir": "other"}, {"binding": "B", "database_id": "1"}`, []layout.Migrations{{Database: "1", Table: "d1_migrations", Files: []layout.Migration{{Name: "1.sql", SQL: "C"}}}}},
	} {
		m := mustBuild(t, with(`"d1_databases": [`+c.databases+`]`, files)).Bundle.Manifest
		if !reflect.DeepEqual(m.Migrations, c.want) {
			t.Errorf("%s: %+v, want %+v", name, m.Migrations, c.want)
		}
		if v := map[bool]int{false: 2, true: 3}[len(c.want) > 0]; m.V != v {
			t.Errorf("%s: format %d, want %d", name, m.V, v)
		}
	}
}

func TestRefusesMigrations(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "1.sql")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		databases, file, body, want string
	}{
		"outside":         {`{"binding": "DB", "migrations_dir": "../x"}`, "", "", ""}, // nothing is there
		"absolute":        {`{"binding": "DB", "migrations_dir": "` + filepath.Dir(outside) + `"}`, "", "", ""},
		"two directories": {`{"binding": "A", "database_id": "1", "migrations_dir": "a"}, {"binding": "B", "database_id": "1", "migrations_dir": "b"}`, "a/1.sql", "", `the D1 database "1" has migrations in "a" and in "b"`},
		"an empty table":  {`{"binding": "A", "migrations_table": ""}`, "migrations/1.sql", "", "migrations_table is empty"},
		"too large":       {`{"binding": "A"}`, "migrations/1.sql", strings.Repeat("x", maxMigration+1), "migrations/1.sql is no file of at most 1024 KiB"},
		"no text":         {`{"binding": "A"}`, "migrations/1.sql", "\xff", "migrations/1.sql is not UTF-8"},
		"a pattern":       {`{"binding": "A", "migrations_pattern": "x"}`, "", "", "only mean"},
	} {
		files := map[string]string{"a.js": "export default {}"}
		if c.file != "" {
			files[c.file] = c.body
		}
		p, err := Open(tree(t, with(`"d1_databases": [`+c.databases+`]`, files)))
		var got []layout.Migrations
		if err == nil {
			got, err = p.migrations()
		}
		if len(got) > 0 || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %+v %v, want %s", name, got, err, c.want)
		}
	}
	// A link that leads out of the project.
	p, err := Open(tree(t, with(`"d1_databases": [{"binding": "DB"}]`, map[string]string{"a.js": "export default {}"})))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(p.Dir, "migrations")); err != nil {
		t.Fatal(err)
	}
	if got, err := p.migrations(); err == nil {
		t.Errorf("read through a link: %v", got)
	}
	if err := os.Remove(filepath.Join(p.Dir, "migrations")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(p.Dir, "migrations"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(p.Dir, "migrations", "1.sql")); err != nil {
		t.Fatal(err)
	}
	if got, err := p.migrations(); err == nil {
		t.Errorf("read through a link: %v", got)
	}
}
