import { DurableObject } from "cloudflare:workers";

interface Env {
	COUNTER: DurableObjectNamespace<Counter>;
}

/** One counter for each path, kept in the object's own SQLite database. */
export class Counter extends DurableObject<Env> {
	constructor(ctx: DurableObjectState, env: Env) {
		super(ctx, env);
		ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS hits (id INTEGER PRIMARY KEY CHECK (id = 1), n INTEGER NOT NULL)");
	}

	/** Adds one and returns the new count; it is durable once the answer is out. */
	increment(): number {
		return this.ctx.storage.sql
			.exec<{ n: number }>("INSERT INTO hits VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = n + 1 RETURNING n")
			.one().n;
	}

	value(): number {
		const [row] = this.ctx.storage.sql.exec<{ n: number }>("SELECT n FROM hits").toArray();
		return row?.n ?? 0;
	}
}

export default {
	/** GET / counts up and answers the new count. GET /?read only reads it. */
	async fetch(request: Request, env: Env): Promise<Response> {
		const url = new URL(request.url);
		const counter = env.COUNTER.getByName(url.pathname);
		const n = url.searchParams.has("read") ? await counter.value() : await counter.increment();
		return new Response(`${n}\n`);
	},
};
