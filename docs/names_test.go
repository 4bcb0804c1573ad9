package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that an explanation or the reference of the registry names exists, and each
// promise names one.
func TestPagesNameTestsThatExist(t *testing.T) {
	const root = ".."
	pages, err := filepath.Glob("explanation/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	named := regexp.MustCompile("`([A-Za-z0-9_/.-]+)\\.((?:Test|Fuzz)\\w+)`")
	sources := map[string]string{}
	for _, page := range append(pages, "reference/registry.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			dir := m[1]
			if dir == "system" {
				dir = "test/system"
			}
			if _, read := sources[dir]; !read {
				files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
				if err != nil || len(files) == 0 {
					t.Errorf("%s: there is no package %s", page, m[1])
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
				t.Errorf("%s: there is no %s.%s", page, m[1], m[2])
			}
		}
		if filepath.Base(page) == "guarantees.md" {
			promises(t, string(text), named)
		}
	}
}

// promises checks the rows of the guarantees: a promise, its mechanism, a test, its
// conditions, its bound.
func promises(t *testing.T, text string, named *regexp.Regexp) {
	rows := 0
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| promise") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
		if len(cells) != 5 || strings.TrimSpace(cells[0]) == "" || strings.TrimSpace(cells[1]) == "" || !named.MatchString(cells[2]) {
			t.Errorf("no promise with its mechanism and its test: %s", line)
		}
	}
	if rows < 25 {
		t.Errorf("%d promises", rows)
	}
}
