package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// row is one line of the table.
type row struct {
	Part string `json:"part"`
	What string `json:"what"`
	// Value and Base are what was measured, as people read it; Base is empty where
	// nothing is compared.
	Value string  `json:"value"`
	Base  string  `json:"base,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	Goal  goal    `json:"goal"`
	// of is what the goal bounds, where that is not the ratio.
	of *float64
}

// goal is what a row has to reach.
type goal struct {
	Most  float64 `json:"most,omitempty"`  // 0: no bound
	Least float64 `json:"least,omitempty"` // 0: no bound
	Unit  string  `json:"unit,omitempty"`  // of what is bounded; empty: a ratio
}

func (g goal) String() string {
	if g.Least > 0 {
		return fmt.Sprintf("≥ %g", g.Least)
	}
	if g.Most == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("≤ %g %s", g.Most, g.Unit))
}

func (r row) bounded() float64 {
	if r.of != nil {
		return *r.of
	}
	return r.Ratio
}

func (r row) missed() bool {
	return r.Goal.Most > 0 && r.bounded() > r.Goal.Most || r.Goal.Least > 0 && r.bounded() < r.Goal.Least
}

// outcome is what the goal is held against.
func (r row) outcome() string {
	if r.of != nil {
		return r.Value
	}
	return fmt.Sprintf("%.2f", r.Ratio)
}

// ratio adds a row that compares two measurements of the same unit.
func (b *bench) ratio(what, value, base string, ratio, most float64) {
	b.add(row{Part: b.part, What: what, Value: value, Base: base, Ratio: ratio, Goal: goal{Most: most}})
}

// number adds a row with an absolute number.
func (b *bench) number(what, value string) {
	b.add(row{Part: b.part, What: what, Value: value})
}

// bound adds a row whose number itself has a goal.
func (b *bench) bound(what, value string, of, most float64, unit string) {
	b.add(row{Part: b.part, What: what, Value: value, Goal: goal{Most: most, Unit: unit}, of: &of})
}

func (b *bench) add(r row) {
	b.rows = append(b.rows, r)
	b.say("%s: %s", r.What, strings.Join(r.cells()[2:], "  "))
}

func (r row) cells() []string {
	ratio, verdict := "", ""
	if r.Ratio != 0 {
		ratio = fmt.Sprintf("%.2f", r.Ratio)
	}
	if r.Goal.Most > 0 || r.Goal.Least > 0 {
		verdict = "reached"
		if r.missed() {
			verdict = "MISSED"
		}
	}
	return []string{r.Part, r.What, r.Value, r.Base, ratio, r.Goal.String(), verdict}
}

var headings = []string{"part", "what", "scafo", "baseline", "ratio", "goal", ""}

// table prints the rows for a terminal.
func table(w io.Writer, b *bench) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(headings, "\t"))
	for _, r := range b.rows {
		fmt.Fprintln(t, strings.Join(r.cells(), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	c := conditions(b)
	_, err := fmt.Fprintf(w, "\n%s CPUs, %s, Linux %s, load average %s, %s rounds, loads of %s, idle windows of %s\n",
		c["cpus"], c["go"], c["kernel"], c["load"], c["rounds"], c["loadFor"], c["idleFor"])
	return err
}

// markdown prints the rows for the documentation.
func markdown(w io.Writer, b *bench) error {
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(headings[:6], " | "), strings.Repeat(" --- |", 6))
	for _, r := range b.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r.cells()[:6], " | "))
	}
	return nil
}
