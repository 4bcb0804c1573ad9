package instance

import (
	"encoding/json"
	"strings"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// The runtime starts a Worker whose crons or queues have no handler, and says so
// each time that one comes due. So a trial looks: its main module is one that
// stands before the Worker's own.

// checkModule is that module's name.
const checkModule = "celld-workerd-trial.js"

// checkMark begins what it throws.
const checkMark = "celld-workerd: "

// checks is the code of the module; empty when there is nothing to look for.
func checks(m *layout.Manifest, main layout.Module) string {
	if main.Type != layout.ESModule {
		return ""
	}
	need := map[string]string{}
	if len(m.Crons) > 0 {
		need["scheduled"] = "triggers.crons needs"
	}
	if len(m.Consumers) > 0 {
		need["queue"] = "queues.consumers needs"
	}
	if len(need) == 0 {
		return ""
	}
	needs, _ := json.Marshal(need)            // strings alone
	name, _ := json.Marshal("./" + main.Name) // a string
	return `import * as all from ` + string(name) + `;
export * from ` + string(name) + `;
export default all.default;
const handlers = typeof all.default === "function" ? all.default.prototype : all.default;
for (const [name, who] of Object.entries(` + string(needs) + `)) {
  if (typeof handlers?.[name] !== "function") throw new Error("` + checkMark + `" + who + " a " + name + "() handler, and the Worker's default export has none");
}
`
}

// plainly is what the module said, where the sentence is one of its own.
func plainly(sentence string) string {
	_, said, ok := strings.Cut(sentence, checkMark)
	if !ok {
		return sentence
	}
	said, _, _ = strings.Cut(said, "\n")
	return said
}
