package costtest

import "testing"

func TestAmount(t *testing.T) {
	for cell, want := range map[string]int{
		"0": 0, "1 + 1": 2, "2 + 1 announcement": 3, "8 + 1 of the lease, 1 for each claim; and 2 for each key": 8 + 1 + 3 + 8,
	} {
		if got, err := amount(cell, Times{"for each claim": 3, "for each key": 4}, Times{}); got != want || err != nil {
			t.Errorf("%q: %d %v, want %d", cell, got, err, want)
		}
	}
	for _, cell := range []string{"", "the same", "1 for each other", "one", "1 + "} {
		if got, err := amount(cell, Times{"for each claim": 3}, Times{}); err == nil {
			t.Errorf("%q is %d", cell, got)
		}
	}
}

func TestRowsNameCalls(t *testing.T) {
	rows := Rows(t)
	for _, name := range []string{"GET /v1/state", "POST /v1/applications/:name/block", "POST /v1/applications/:name/unblock"} {
		if rows[name].Reads == "" {
			t.Errorf("no row for %s", name)
		}
	}
}
