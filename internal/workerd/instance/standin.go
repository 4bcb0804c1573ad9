package instance

import (
	"encoding/json"
	"strings"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// A stand-in serves an application that keeps state while its store is away: what
// needs no state is answered as ever. Its bindings to state lead to a Worker that
// fails every call. It knows neither the bucket nor a disk, so there is nothing that it
// could read, acknowledge or own; the Worker's own classes are never made, and nothing
// comes due in it.

// serviceAway is where the bindings to state lead to in a stand-in.
const serviceAway = "away"

// awaySentence is what the Worker gets to hear from each of them.
const awaySentence = "The bucket is away: Durable Objects, KV, D1, queues and workflows cannot be reached until it is back."

// awayModule is that Worker's code. Objects fail when they are made, so that every
// method of theirs does.
func awayModule(classes []layout.Class) string {
	sentence, _ := json.Marshal(awaySentence) // a string
	var b strings.Builder
	b.WriteString(`import { DurableObject } from "cloudflare:workers";
const why = ` + string(sentence) + `;
class Away extends DurableObject {
  constructor(ctx, env) { super(ctx, env); throw new Error(why); }
}
export default {
  async fetch(request) {
    await request.body?.pipeTo(new WritableStream()); // or who sends it would wait for good
    return new Response(why, { status: 503, statusText: why });
  },
};
`)
	for _, c := range classes {
		name, _ := json.Marshal(c.Name) // a string
		b.WriteString("export { Away as " + string(name) + " };\n")
	}
	return b.String()
}

// away renders that Worker. The ids of objects are those that they have otherwise:
// they follow from the key.
func away(m *layout.Manifest) node {
	module := object(field{"name", text("away.js")}, field{"esModule", text(awayModule(m.Classes))})
	classes := make([]node, len(m.Classes))
	for i, c := range m.Classes {
		classes[i] = object(field{"className", text(c.Name)}, field{"uniqueKey", text(c.Key)})
	}
	return object(field{"name", text(serviceAway)}, field{"worker", object(
		field{"modules", list(module)}, field{"compatibilityDate", text(servicesDate)},
		field{"durableObjectNamespaces", list(classes...)},
		field{"durableObjectStorage", object(field{"inMemory", "void"})},
	)})
}
