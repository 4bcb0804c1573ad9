package api_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/api"
)

// cost is a row of the reference's table of what calls cost.
type cost struct{ reads, writes, lists string }

// costs are the rows, by each call of their first cell, as it is spelled there.
func costs(t *testing.T) map[string]cost {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## What a call costs\n")
	if !ok {
		t.Fatal("the reference does not say what calls cost")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	route := regexp.MustCompile("`[A-Z]+ /[^`]*`")
	rows := map[string]cost{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		c := cost{cells[1], cells[2], cells[3]}
		rows[cells[0]] = c
		for _, r := range route.FindAllString(cells[0], -1) {
			rows[strings.Trim(r, "`")] = c
		}
	}
	return rows
}

// figure adds up a cell that is a sum of numbers, as in "1 + 1 announcement".
func figure(cell string) (int, bool) {
	total := 0
	for part := range strings.SplitSeq(cell, " + ") {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSuffix(part, " announcements"), " announcement"))
		if err != nil {
			return 0, false
		}
		total += n
	}
	return total, true
}

func (c cost) is(reads, writes, lists int) bool {
	says := func(cell string, want int) bool {
		n, ok := figure(cell)
		return ok && n == want
	}
	return says(c.reads, reads) && says(c.writes, writes) && says(c.lists, lists)
}

// The reference says what each route costs of the bucket.
func TestReferenceTellsTheCostOfEveryRoute(t *testing.T) {
	rows := costs(t)
	for _, r := range api.Routes(everything(t)) {
		if _, ok := rows[r.Method+" "+r.Path]; !ok {
			t.Errorf("docs/reference/api.md does not say what %s %s costs", r.Method, r.Path)
		}
	}
}
