package api_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The conformance page names files and tests that there are.
func TestConformanceNamesWhatExists(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.SplitSeq(string(page), "\n") {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| it says") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		if len(cells) != 3 || !strings.Contains(cells[1], "`") || !strings.Contains(cells[2], "`") {
			t.Errorf("not a sentence, a place and a test: %s", line)
		}
	}
	if rows < 100 {
		t.Errorf("%d rows", rows)
	}
	for _, m := range regexp.MustCompile("`([A-Za-z0-9_/.-]+\\.go)`").FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("there is no %s", m[1])
		}
	}
	sources := map[string]string{}
	for _, m := range regexp.MustCompile("`([A-Za-z0-9_/.-]+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(page), -1) {
		dir := m[1]
		switch dir {
		case "scafo":
			dir = "."
		case "system":
			dir = "test/system"
		}
		if _, read := sources[dir]; !read {
			files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Errorf("there is no package %s", m[1])
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[dir] += string(b)
			}
		}
		if !strings.Contains(sources[dir], "\nfunc "+m[2]+"(") {
			t.Errorf("there is no %s.%s", m[1], m[2])
		}
	}
}
