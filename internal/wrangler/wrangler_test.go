package wrangler

import (
	"strings"
	"testing"
)

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, path string
		want       bool
	}{
		{"**/*.txt", "a.txt", true}, {"**/*.txt", "x/y/a.txt", true}, {"**/*.txt", "a.txt.js", false},
		{"*.txt", "x/a.txt", false}, {"dir/*", "dir/a", true}, {"dir/*", "dir/a/b", false}, {"dir/**", "dir/a/b", true},
		{"./a.js", "a.js", true}, {"**/*.wasm?module", "x.wasm?module", true}, {"**/*.wasm?module", "x.wasmXmodule", false},
		{"a+b(c).txt", "a+b(c).txt", true},
	} {
		re, err := glob(c.glob)
		if err != nil {
			t.Fatal(err)
		}
		if re.MatchString(c.path) != c.want {
			t.Errorf("%s on %s is not %v", c.glob, c.path, c.want)
		}
	}
}

func TestRulesReplaceTheDefaultOnes(t *testing.T) {
	md := []Rule{{Type: "Text", Globs: []string{"**/*.md"}}}
	for _, c := range []struct {
		rules []Rule
		path  string
		want  ModuleType
	}{
		{nil, "a.txt", Text}, {nil, "a/b.sql", Text}, {nil, "a.bin", Data}, {nil, "a.wasm", CompiledWasm}, {nil, "a.md", ""},
		{md, "a.md", Text}, {md, "a.txt", ""}, {md, "a.bin", Data},
		{[]Rule{{Type: "Text", Globs: []string{"**/*.md"}, Fallthrough: true}}, "a.txt", Text},
		{[]Rule{{Type: "Data", Globs: []string{"**/*.txt"}}}, "a.txt", Data},
	} {
		m, err := NewMatcher(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := m.Match(c.path); got != c.want {
			t.Errorf("%v: %s is %q, want %q", c.rules, c.path, got, c.want)
		}
	}
}

func TestIgnore(t *testing.T) {
	for _, c := range []struct {
		patterns, path string
		want           bool
	}{
		{"*.map", "a.map", true}, {"*.map", "x/y/a.map", true}, {"*.map", "a.mapx", false},
		{"/a.txt", "a.txt", true}, {"/a.txt", "x/a.txt", false}, {"x/a.txt", "y/x/a.txt", false},
		{"tmp/", "tmp/a", true}, {"tmp/", "x/tmp/a", true}, {"tmp/", "tmp", false}, {"tmp", "tmp", true}, {"tmp", "tmp/a/b", true},
		{"*\n!keep.txt", "keep.txt", false}, {"*\n!keep.txt", "other", true}, {"d/\n!d/keep.txt", "d/keep.txt", true},
		{"# a comment\n\n", "# a comment", false}, {`\#x`, "#x", true}, {`\!x`, "!x", true}, {"a.txt   ", "a.txt", true}, {`a\ `, "a ", true},
		{"**/foo", "a/b/foo", true}, {"**/foo", "foo", true}, {"a/**/b", "a/b", true}, {"a/**/b", "a/x/y/b", true}, {"a/**", "a/x", true}, {"a/**", "a", false},
		{"a?c", "abc", true}, {"a?c", "a/c", false}, {"[abc].txt", "b.txt", true}, {"[!abc].txt", "b.txt", false}, {"[a-c]", "b", true}, {"[", "[", true},
		{"*.txt\r\n", "a.txt", true}, {"größe", "größe", true}, {`\ü`, "ü", true},
	} {
		if got := ParseIgnore(c.patterns).Match(c.path); got != c.want {
			t.Errorf("%q on %q is %v", c.patterns, c.path, got)
		}
	}
}

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{"vars": "vars", "vras": "vars", "migration": "migrations", "xyzzy": ""} {
		if got := Nearest(word, []string{"vars", "migrations", "define"}); got != want {
			t.Errorf("%s: got %q, want %q", word, got, want)
		}
	}
}

func TestNodeCompat(t *testing.T) {
	for _, c := range []struct {
		date  string
		flags []string
		want  bool
	}{
		{"2026-08-03", nil, false}, {"2026-08-04", nil, true}, {"2027-01-01", []string{"no_nodejs_compat"}, false},
		{"2024-01-01", []string{"x", "nodejs_compat"}, true}, {"2024-01-01", []string{"nodejs_compat_v2"}, true},
	} {
		if got := NodeCompat(c.date, c.flags); got != c.want {
			t.Errorf("%s %v: %v", c.date, c.flags, got)
		}
	}
}

func TestNodeFlags(t *testing.T) {
	compat := []string{"nodejs_compat"}
	for _, c := range []struct {
		date  string
		flags []string
		uses  string
		want  string
	}{
		{"2025-05-01", compat, "fs fs/promises path crypto", "enable_nodejs_fs_module"},
		{"2025-05-01", compat, "https http process", "enable_nodejs_http_modules enable_nodejs_http_server_modules enable_nodejs_process_v2"},
		{"2025-05-01", nil, "fs", ""},
		{"2026-04-01", compat, "fs process", ""},
		{"2026-03-31", compat, "tty readline/promises", "enable_nodejs_readline_module enable_nodejs_tty_module"},
		{"2025-05-01", []string{"nodejs_compat", "disable_nodejs_fs_module", "enable_nodejs_os_module"}, "fs os vm", "enable_nodejs_vm_module"},
		{"2024-09-22", compat, "process os", "enable_nodejs_os_module"},
		{"2025-05-01", []string{"nodejs_compat", "no_nodejs_compat_v2"}, "process vm", "enable_nodejs_vm_module"},
		{"2024-09-22", []string{"nodejs_compat_v2"}, "process", "enable_nodejs_process_v2"},
	} {
		if got := strings.Join(NodeFlags(c.date, c.flags, strings.Fields(c.uses)), " "); got != c.want {
			t.Errorf("%s %v %s: %s", c.date, c.flags, c.uses, got)
		}
	}
}
