interface Env {
	DB: D1Database;
	SHARED: KVNamespace;
}

type Note = { id: number; text: string; written: number };

const MAX_TEXT = 10_000; // characters
const SHARED_SECONDS = 3600;

const find = (env: Env, id: string) => env.DB.prepare("SELECT id, text, written FROM notes WHERE id = ?").bind(id).first<Note>();

/** Makes a link under which anybody reads the note for an hour. */
async function share(env: Env, id: string, origin: string): Promise<Response> {
	if ((await find(env, id)) === null) return new Response("no such note\n", { status: 404 });
	const key = crypto.randomUUID();
	await env.SHARED.put(key, id, { expirationTtl: SHARED_SECONDS });
	return new Response(`${origin}/shared/${key}\n`, { status: 201 });
}

export default {
	/** GET / lists, POST / adds, GET and DELETE /<id>, POST /<id>/share, GET /shared/<key>. */
	async fetch(request: Request, env: Env): Promise<Response> {
		const url = new URL(request.url);
		const [first, second] = url.pathname.slice(1).split("/");
		const route = `${request.method} ${first === "" ? "/" : first === "shared" ? "/shared" : second === "share" ? "/id/share" : "/id"}`;
		switch (route) {
			case "GET /":
				return Response.json((await env.DB.prepare("SELECT id, text, written FROM notes ORDER BY id DESC LIMIT 100").all<Note>()).results);
			case "POST /": {
				const text = (await request.text()).slice(0, MAX_TEXT);
				const note = await env.DB.prepare("INSERT INTO notes (text, written) VALUES (?, ?) RETURNING id, text, written").bind(text, Date.now()).first<Note>();
				return Response.json(note, { status: 201 });
			}
			case "POST /id/share":
				return share(env, first, url.origin);
			case "DELETE /id":
				await env.DB.prepare("DELETE FROM notes WHERE id = ?").bind(first).run();
				return new Response(null, { status: 204 });
			case "GET /shared":
			case "GET /id": {
				const id = first === "shared" ? await env.SHARED.get(second ?? "") : first;
				const note = id === null ? null : await find(env, id);
				return note === null ? new Response("no such note\n", { status: 404 }) : Response.json(note);
			}
		}
		return new Response("GET, POST or DELETE\n", { status: 405, headers: { Allow: "GET, POST, DELETE" } });
	},
};
