package instance

import _ "embed"

// What stands before the runtime's own Workers of KV and D1; see again.js.
const againModule = "again.js"

//go:embed again.js
var againCode string

// againD1 and againKV are the main modules; the runtime's own one is beside them.
const (
	againD1 = `import Service, { D1Database } from "./d1.js";
import { again, d1 } from "./again.js";
export { D1Database };
export default class extends Service {
  constructor(ctx, env) { super(ctx, { ...env, DATABASE: again(env.DATABASE, d1) }); }
}
`
	againKV = `import service, { KVNamespace } from "./kv.js";
import { again, kv } from "./again.js";
export { KVNamespace };
export default { fetch: (request, env, ctx) => service.fetch(request, { ...env, SHARD: again(env.SHARD, kv) }, ctx) };
`
)
