package project

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// base is a configuration with what every one needs.
func base(rest string) string {
	return "{\n\"name\": \"app\", \"main\": \"a.js\", \"compatibility_date\": \"2026-11-01\",\n" + rest + "\n}"
}

func TestReadsAConfiguration(t *testing.T) {
	dir := tree(t, map[string]string{"wrangler.jsonc": "\xef\xbb\xbf" + `// a comment
{
	"$schema": "x", "name": "my-app", "main": "src/a.ts", "compatibility_date": "2026-11-01",
	"compatibility_flags": ["nodejs_compat"],
	"vars": {"TEXT": "a", "N": 1.50, "O": {"b": [true, null]},},
	"durable_objects": {"bindings": [{"name": "C", "class_name": "New"}]},
	"migrations": [
		{"tag": "v1", "new_sqlite_classes": ["Old", "Gone"], "new_classes": ["Kv"]},
		{"tag": "v2", "renamed_classes": [{"from": "Old", "to": "New"}], "deleted_classes": ["Gone"]},
		{"tag": "v3", "new_sqlite_classes": ["Gone", "Old"]},
	],
	"assets": {"directory": "public", "binding": "FILES", "html_handling": "none", "not_found_handling": "404-page", "run_worker_first": ["/api/*"]},
	"define": {"A": "\"x\""}, "rules": [{"type": "Text", "globs": ["**/*.md"], "fallthrough": true}],
	"triggers": {"crons": []},
}`, "wrangler.json": "not read"})
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	p.Config.Assets.at = nil
	want := Config{
		Name: "my-app", Main: "src/a.ts", CompatibilityDate: "2026-11-01", CompatibilityFlags: []string{"nodejs_compat"},
		Vars:           map[string]json.RawMessage{"TEXT": json.RawMessage(`"a"`), "N": json.RawMessage(`1.50`), "O": json.RawMessage(`{"b":[true,null]}`)},
		DurableObjects: []layout.DurableObject{{Binding: "C", Class: "New"}},
		Classes: []layout.Class{
			{Name: "New", Key: "do-Old", SQL: true},
			{Name: "Kv", Key: "do-Kv"},
			{Name: "Gone", Key: "do-Gone-2", SQL: true},
			{Name: "Old", Key: "do-Old-2", SQL: true},
		},
		Assets: &Assets{Directory: "public", Binding: "FILES", HTMLHandling: "none", NotFoundHandling: "404-page", RunWorkerFirst: json.RawMessage(`["/api/*"]`)},
		Define: map[string]string{"A": `"x"`}, Rules: []wrangler.Rule{{Type: "Text", Globs: []string{"**/*.md"}, Fallthrough: true}},
	}
	if !reflect.DeepEqual(p.Config, want) {
		t.Errorf("got  %+v\nwant %+v", p.Config, want)
	}
}

func TestFindsTheConfiguration(t *testing.T) {
	json := base(`"vars": {"FROM": "json"}`)
	for name, c := range map[string]struct {
		files map[string]string
		path  string
		want  string // of the error
	}{
		"json":         {map[string]string{"wrangler.json": json}, ".", ""},
		"a named file": {map[string]string{"other.json": json, "wrangler.json": "{"}, "other.json", ""},
		"only toml":    {map[string]string{"wrangler.toml": ""}, ".", "has only a wrangler.toml: convert it to wrangler.jsonc"},
		"nothing":      {nil, ".", "has neither wrangler.jsonc nor wrangler.json"},
		"no project":   {nil, "nowhere", "no such file or directory"},
		"too long":     {map[string]string{"wrangler.json": strings.Repeat(" ", wrangler.MaxConfig+1)}, ".", "wrangler.json is no file of at most 1048576 bytes"},
		"just fitting": {map[string]string{"wrangler.json": json + strings.Repeat(" ", wrangler.MaxConfig-len(json))}, ".", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Open(filepath.Join(tree(t, c.files), c.path))
			if c.want == "" {
				if err != nil || string(p.Config.Vars["FROM"]) != `"json"` {
					t.Errorf("got %v", err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestRefusesAConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"{":                    "wrangler.jsonc:1:2: ",
		"{\n  \"name\" \"x\"}": "wrangler.jsonc:2:10: ",
		`[]`:                   "wrangler.jsonc:1:1: the configuration is a list, want an object",
		`{"main": "a", "compatibility_date": "2026-11-01"}`:               `:1:1: "name" is missing`,
		`{"name": "-a", "main": "a", "compatibility_date": "2026-11-01"}`: ":1:10: name \"-a\": want letters",
		`{"name": "a", "main": "a"}`:                                      `"compatibility_date" is missing`,
		`{"name": "a", "main": "a", "compatibility_date": "yesterday"}`:   `:1:50: compatibility_date "yesterday" is no day as YYYY-MM-DD`,
		`{"name": "a", "compatibility_date": "2026-11-01"}`:               `neither "main" nor "assets"`,
		base(`"observability": {"enabled": true}`):                        `wrangler.jsonc:3:1: unsupported key "observability": it only means something at Cloudflare`,
		base(`"env": {}`):                   "scafo deploy --env NAME",
		base(`"ai": {}`):                    `unsupported key "ai": the runtime has no such service`,
		base(`"r2_buckets": []`):            `unsupported key "r2_buckets": the runtime has no such service: keep files up to 25 MiB in a KV namespace`,
		base(`"containers": []`):            `unsupported key "containers": the runtime starts no containers`,
		base(`"worker_loaders": []`):        `unsupported key "worker_loaders": the runtime would run code`,
		base(`"var": {}`):                   `unknown key "var": did you mean "vars"?`,
		base(`"Name": "b"`):                 `unknown key "Name": did you mean "name"?`,
		base(`"completely_different": 1`):   `unknown key "completely_different": remove it`,
		base(`"name": "b"`):                 `:3:1: "name" stands twice`,
		base(`"vars": {"A": 1, "A": 2}`):    `"A" stands twice`,
		base(`"vars": []`):                  "vars is a list, want an object",
		base(`"no_bundle": "yes"`):          "no_bundle is a string, want true or false",
		base(`"compatibility_flags": [1]`):  "an item of compatibility_flags is a number, want a string",
		base(`"define": {"A": 1}`):          "define.A is a number",
		base(`"rules": [{"type": "Text"}]`): "a rule needs type and globs",
		base(`"rules": [{"type": "PythonModule", "globs": ["*.py"]}]`): "want one of ESModule, CommonJS, Text, Data, CompiledWasm",
		base(`"assets": {}`): `assets has no "directory"`,
		base(`"assets": {"directory": "p", "bucket": "q"}`):                   `assets has the unsupported key "bucket"`,
		base(`"assets": {"directory": "p", "html_handling": "x"}`):            "want one of auto-trailing-slash",
		base(`"assets": {"directory": "p", "binding": "A"}, "vars": {"A":1}`): `the binding "A" is given by vars and by assets`,
		base(`"durable_objects": {"bindings": [{"name": "C", "class_name": "C"}]}`): `:3:34: the binding "C" names the class "C", which no migration makes: ` +
			`add {"tag": "v1", "new_sqlite_classes": ["C"]} to migrations`,
		base(`"durable_objects": {"bindings": [{"name": "C"}]}`):                                          "a binding of durable_objects needs name and class_name",
		base(`"durable_objects": {"bindings": [{"name": "C", "class_name": "C", "script_name": "b"}]}`):   `"b" is another Worker: applications do not reach into one another`,
		base(`"migrations": [{"new_classes": ["C"]}]`):                                                    "a migration needs a tag",
		base(`"migrations": [{"tag": "a"}, {"tag": "a"}]`):                                                `the migration tag "a" stands twice`,
		base(`"migrations": [{"tag": "a", "new_classes": ["not/a/class"]}]`):                              `"not/a/class" is no name of a class`,
		base(`"migrations": [{"tag": "a", "new_classes": ["C"], "new_sqlite_classes": ["C"]}]`):           "makes the class C, which is there already",
		base(`"migrations": [{"tag": "a", "deleted_classes": ["C"]}]`):                                    "deletes the class C, which no migration before it made",
		base(`"migrations": [{"tag": "a", "renamed_classes": [{"from": "C", "to": "D"}]}]`):               "renames the class C, which no migration before it made",
		base(`"migrations": [{"tag": "a", "transferred_classes": []}]`):                                   "cannot be taken over",
		`{"name": "a", "compatibility_date": "2026-11-01", "assets": {"directory": "p", "binding": "A"}}`: `assets.binding needs a Worker`,
		`{"name": "a", "compatibility_date": "2026-11-01", "assets": {"directory": "p"},
			"migrations": [{"tag": "a", "new_classes": ["C"]}]}`: "Durable Objects need a Worker",
	} {
		_, err := Open(tree(t, map[string]string{"wrangler.jsonc": text}))
		var c *ConfigError
		if !errors.As(err, &c) {
			t.Errorf("%s\n\tgot %v, want a ConfigError", text, err)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n\tgot %q\n\twant %q", text, err, want)
		}
	}
}
