package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With --json a command prints one object on standard output, also when it fails
// before it has called anybody.
func TestAFailureIsOneObject(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SCAFO_PROFILE", filepath.Join(dir, "profile.json"))
	if err := os.WriteFile(filepath.Join(dir, "wrangler.json"), []byte("{\n  \"name\": }"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		exit int
		says string
	}{
		"no profile":                 {[]string{"apps", "list", "--json"}, 1, "no fleet is known"},
		"a file that does not parse": {[]string{"deploy", dir, "--json"}, 1, "wrangler.json"},
		"no such folder":             {[]string{"deploy", filepath.Join(dir, "none"), "--json"}, 1, "none"},
		"an unknown flag":            {[]string{"deploy", "--nosuch", "--json"}, 2, "nosuch"},
		"a wrong value":              {[]string{"deploy", dir, "--replicas", "0", "--json"}, 2, "--replicas"},
		"an unknown command":         {[]string{"--json", "deplyo"}, 2, "deplyo"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := execute(t.Context(), c.args, &out, &errs); code != c.exit {
				t.Errorf("exit %d", code)
			}
			d := json.NewDecoder(&out)
			var f map[string]string
			if err := d.Decode(&f); err != nil || !strings.Contains(f["detail"], c.says) {
				t.Errorf("%v, %v", f, err)
			}
			if d.More() {
				t.Error("more than one object")
			}
			if !strings.HasPrefix(errs.String(), "scafo: ") {
				t.Errorf("standard error: %q", errs.String())
			}
			// Without it, standard output is empty.
			out.Reset()
			var plain []string
			for _, a := range c.args {
				if a != "--json" {
					plain = append(plain, a)
				}
			}
			if code := execute(t.Context(), plain, &out, &errs); code != c.exit || out.Len() > 0 {
				t.Errorf("without --json: exit %d, %q", code, out.String())
			}
		})
	}
}

// A name that is none is a mistake on the command line, whatever the command, and
// nobody is asked about it.
func TestANameThatIsNoneIsAUsageError(t *testing.T) {
	f := newTestFleet(t)
	target := []string{"--node", f.url, "--key-file", f.key}
	for _, args := range [][]string{
		{"apps", "show", "A_"}, {"apps", "block", "A_"}, {"apps", "unblock", "A_"}, {"apps", "retire", "A_"}, {"apps", "unretire", "A_"},
		{"apps", "label", "A_", "a=b"}, {"apps", "select", "A_", "a=b"}, {"apps", "scale", "A_", "2"}, {"apps", "delete", "A_"},
		{"domains", "list", "A_"}, {"domains", "add", "A_", "shop.example"}, {"domains", "remove", "A_", "shop.example"},
		{"deploys", "show", "A_"}, {"operators", "remove", "A_"}, {"deploy", t.TempDir(), "--name", "A_"},
	} {
		var out, errs bytes.Buffer
		if code := execute(t.Context(), append(args, target...), &out, &errs); code != exitUsage || out.Len() > 0 {
			t.Errorf("%v: exit %d, %q %q", args, code, out.String(), errs.String())
		}
	}
}

// The object has the code of what refused, and one that was printed is the only one.
func TestAFailureKeepsTheCode(t *testing.T) {
	f := newTestFleet(t)
	f.must("freeze", "show")
	run := func(args ...string) (map[string]any, int) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append(args, "--json", "--node", f.url, "--key-file", f.key), &out, &errs)
		d := json.NewDecoder(&out)
		var v map[string]any
		if err := d.Decode(&v); err != nil || d.More() {
			t.Fatalf("%v: %v, or more than one object", args, err)
		}
		return v, code
	}
	if v, code := run("apps", "show", "nosuch"); code != 1 || v["code"] != "not-found" || v["detail"] == "" {
		t.Errorf("exit %d, %v", code, v)
	}
}
