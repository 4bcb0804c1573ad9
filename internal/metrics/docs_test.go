package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table in docs/reference/metrics.md anew")

const (
	reference = "../../docs/reference/metrics.md"
	begin     = "<!-- the table is made from internal/metrics/definitions.go -->\n"
	end       = "<!-- end of the table -->\n"
)

// The reference has a row for every metric, and says what the code says. Run with
// -update to write the table anew.
func TestReferenceIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n| --- | --- | --- | --- |\n")
	for _, d := range Definitions() {
		labels := ""
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
	}
	page, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", reference)
	}
	want := before + begin + b.String() + end + after
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(page) != want {
		t.Errorf("%s is not what the definitions say: go test ./internal/metrics -run Reference -update", reference)
	}
}
