package pack

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/scafo/scafo/internal/wrangler"
)

// devVars is where Wrangler keeps variables for development.
const devVars = ".dev.vars"

// devVar is a line that sets one.
var devVar = regexp.MustCompile(`(?m)^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=`)

// missDevVars says which variables of the development the Worker will not have: their
// file stays here, and a Worker that needs them is hard to understand without.
func (c *config) missDevVars(env string) {
	names := []string{devVars}
	if env != "" {
		names = []string{devVars + "." + env, devVars}
	}
	for _, name := range names {
		text, err := readSmall(filepath.Join(c.base, name), wrangler.MaxConfig)
		if err != nil {
			continue // most projects have none
		}
		var missing []string
		seen := map[string]bool{}
		for _, m := range devVar.FindAllStringSubmatch(string(text), -1) {
			if v := c.doc.Field("vars"); seen[m[1]] || v != nil && v.Field(m[1]) != nil {
				continue
			}
			seen[m[1]] = true
			missing = append(missing, m[1])
		}
		if len(missing) > 0 {
			c.note("%s stays here, so the Worker does not have %s: --var gives it what it needs", name, strings.Join(missing, ", "))
		}
		return
	}
}
