import { DurableObject } from "cloudflare:workers";

interface Env {
	DESK: DurableObjectNamespace<Desk>;
}

type Digest = { made: number; lines: string[] };

const MAX_LINE = 200; // characters
const MAX_LINES = 1000; // in one digest

/** Collects lines, and puts them together when it is told to. */
export class Desk extends DurableObject<Env> {
	constructor(ctx: DurableObjectState, env: Env) {
		super(ctx, env);
		ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS lines (id INTEGER PRIMARY KEY, text TEXT NOT NULL)");
		ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS digests (made INTEGER PRIMARY KEY, lines TEXT NOT NULL)");
	}

	note(text: string): void {
		this.ctx.storage.sql.exec("INSERT INTO lines (text) VALUES (?)", text);
	}

	/** A cron that failed half way fires again for the same time: its digest is there then. */
	sumUp(made: number): void {
		const { sql } = this.ctx.storage;
		this.ctx.storage.transactionSync(() => {
			if (sql.exec("SELECT 1 FROM digests WHERE made = ?", made).toArray().length > 0) return;
			const lines = sql.exec<{ id: number; text: string }>("SELECT id, text FROM lines ORDER BY id LIMIT ?", MAX_LINES).toArray();
			if (lines.length === 0) return;
			sql.exec("INSERT INTO digests VALUES (?, ?)", made, JSON.stringify(lines.map((line) => line.text)));
			sql.exec("DELETE FROM lines WHERE id <= ?", lines[lines.length - 1].id);
		});
	}

	latest(): Digest | null {
		const [row] = this.ctx.storage.sql.exec<{ made: number; lines: string }>("SELECT made, lines FROM digests ORDER BY made DESC LIMIT 1").toArray();
		return row === undefined ? null : { made: row.made, lines: JSON.parse(row.lines) };
	}
}

export default {
	/** POST / notes a line; GET / answers the latest digest. */
	async fetch(request: Request, env: Env): Promise<Response> {
		const desk = env.DESK.getByName("all");
		if (request.method === "POST") {
			await desk.note((await request.text()).slice(0, MAX_LINE));
			return new Response("noted\n", { status: 202 });
		}
		const digest = await desk.latest();
		return digest === null ? new Response("no digest yet\n", { status: 404 }) : Response.json(digest);
	},

	async scheduled(controller: ScheduledController, env: Env): Promise<void> {
		await env.DESK.getByName("all").sumUp(controller.scheduledTime);
	},
};
