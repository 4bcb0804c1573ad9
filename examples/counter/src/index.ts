import { DurableObject } from "cloudflare:workers";

interface Env {
	COUNTER: DurableObjectNamespace<Counter>;
}

/**
 * One counter for each path, kept in the object's own SQLite database.
 *
 * It is called with fetch() and not by a method of its own: when an object moves
 * to another machine in the middle of a call, the runtime sends a fetch() on,
 * where a method's caller would have to try again.
 */
export class Counter extends DurableObject<Env> {
	constructor(ctx: DurableObjectState, env: Env) {
		super(ctx, env);
		ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS hits (id INTEGER PRIMARY KEY CHECK (id = 1), n INTEGER NOT NULL)");
	}

	override async fetch(request: Request): Promise<Response> {
		const n = new URL(request.url).searchParams.has("read") ? this.value() : this.increment();
		return new Response(`${n}\n`);
	}

	/** Adds one and returns the new count; it is durable once the answer is out. */
	private increment(): number {
		return this.ctx.storage.sql
			.exec<{ n: number }>("INSERT INTO hits VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = n + 1 RETURNING n")
			.one().n;
	}

	private value(): number {
		const [row] = this.ctx.storage.sql.exec<{ n: number }>("SELECT n FROM hits").toArray();
		return row?.n ?? 0;
	}
}

export default {
	/** GET / counts up and answers the new count. GET /?read only reads it. */
	async fetch(request: Request, env: Env): Promise<Response> {
		return env.COUNTER.getByName(new URL(request.url).pathname).fetch(request);
	},
};
