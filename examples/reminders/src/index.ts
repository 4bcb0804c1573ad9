import { DurableObject } from "cloudflare:workers";

interface Env {
	REMINDERS: DurableObjectNamespace<Reminders>;
}

type Reminder = {
	id: number;
	due: number; // milliseconds since 1970
	text: string;
	rang: number | null; // when its alarm went off
};

const MAX_SECONDS = 365 * 24 * 3600;

/** A list of reminders with one alarm: that of the next one that is due. */
export class Reminders extends DurableObject<Env> {
	constructor(ctx: DurableObjectState, env: Env) {
		super(ctx, env);
		ctx.storage.sql.exec(
			"CREATE TABLE IF NOT EXISTS reminders (id INTEGER PRIMARY KEY, due INTEGER NOT NULL, text TEXT NOT NULL, rang INTEGER)",
		);
	}

	async add(text: string, seconds: number): Promise<Reminder> {
		const due = Date.now() + Math.round(seconds * 1000);
		const row = this.ctx.storage.sql
			.exec<Reminder>("INSERT INTO reminders (due, text) VALUES (?, ?) RETURNING id, due, text, rang", due, text)
			.one();
		await this.setNext();
		return row;
	}

	list(): Reminder[] {
		return this.ctx.storage.sql.exec<Reminder>("SELECT id, due, text, rang FROM reminders ORDER BY due, id").toArray();
	}

	override async alarm(): Promise<void> {
		const now = Date.now();
		const rows = this.ctx.storage.sql
			.exec<Reminder>("UPDATE reminders SET rang = ? WHERE rang IS NULL AND due <= ? RETURNING id, due, text, rang", now, now)
			.toArray();
		for (const row of rows) console.log(`reminder ${row.id}: ${row.text}`);
		await this.setNext();
	}

	private async setNext(): Promise<void> {
		const { due } = this.ctx.storage.sql
			.exec<{ due: number | null }>("SELECT min(due) AS due FROM reminders WHERE rang IS NULL")
			.one();
		if (due !== null) await this.ctx.storage.setAlarm(due);
	}
}

export default {
	/** POST /?in=<seconds> with a text sets a reminder; GET / lists them. */
	async fetch(request: Request, env: Env): Promise<Response> {
		const reminders = env.REMINDERS.getByName("all");
		if (request.method === "GET") return Response.json(await reminders.list());
		if (request.method !== "POST") return new Response("GET or POST\n", { status: 405, headers: { Allow: "GET, POST" } });
		const seconds = Number(new URL(request.url).searchParams.get("in") ?? "");
		if (!(seconds > 0 && seconds <= MAX_SECONDS)) return new Response("?in= wants a number of seconds\n", { status: 400 });
		return Response.json(await reminders.add((await request.text()).slice(0, 1000), seconds), { status: 201 });
	},
};
