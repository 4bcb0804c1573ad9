// Package costtest reads what the reference says that calls cost of the bucket, for the
// tests that count it.
package costtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Row is one of the table: what calls cost of each kind, as it is spelled.
type Row struct{ Reads, Writes, Lists string }

// Times says how often what a row makes a cost depend on is there: 2 under "for each
// claim" where there are two.
type Times map[string]int

// Rows are those of the table, by the first cell and by each call that it names.
func Rows(t testing.TB) map[string]Row {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## What a call costs\n")
	if !ok {
		t.Fatal("the reference does not say what calls cost")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	route := regexp.MustCompile("`[A-Z]+ /[^`]*`")
	rows := map[string]Row{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		r := Row{cells[1], cells[2], cells[3]}
		rows[cells[0]] = r
		if names := route.FindAllString(cells[0], -1); strings.HasPrefix(cells[0], "`") {
			for _, name := range names {
				rows[strings.Trim(name, "`")] = r
			}
		}
	}
	return rows
}

// Check holds figures to a row: those of a call with so many of each thing.
func (r Row) Check(t testing.TB, what string, times Times, reads, writes, lists int) {
	t.Helper()
	used := Times{}
	for _, c := range []struct {
		kind, cell string
		got        int
	}{{"reads", r.Reads, reads}, {"writes", r.Writes, writes}, {"listings", r.Lists, lists}} {
		want, err := amount(c.cell, times, used)
		if err != nil {
			t.Errorf("%s: %s %q: %v", what, c.kind, c.cell, err)
		} else if want != c.got {
			t.Errorf("%s: %d %s; the reference says %q, which is %d", what, c.got, c.kind, c.cell, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		if _, ok := used[name]; !ok {
			t.Errorf("%s: the reference says nothing that depends on %q", what, name)
		}
	}
}

var (
	parts = regexp.MustCompile(` \+ |[,;] (?:and )?`)
	aside = regexp.MustCompile(` \([^)]*\)`)
	part  = regexp.MustCompile(`^(\d+)(?: (.+))?$`)
	// always are the words behind a number that say what it is for, and under no condition.
	always = map[string]bool{"": true, "announcement": true, "announcements": true, "of the lease": true}
)

// amount adds up a cell such as "2 + 1 announcement, 1 for each claim".
func amount(cell string, times, used Times) (int, error) {
	total := 0
	for _, p := range parts.Split(aside.ReplaceAllString(cell, ""), -1) {
		m := part.FindStringSubmatch(p)
		if m == nil {
			return 0, fmt.Errorf("%q is no number with what it is for", p)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return 0, err
		}
		if always[m[2]] {
			total += n
			continue
		}
		count, known := times[m[2]]
		if !known {
			return 0, fmt.Errorf("the test says nothing of %q", m[2])
		}
		used[m[2]] = count
		total += n * count
	}
	return total, nil
}
