import { DurableObject } from "cloudflare:workers";

interface Env {
	ROOMS: DurableObjectNamespace<Room>;
}

/** How many messages a newcomer sees. */
const HISTORY = 50;
const MAX_TEXT = 2000;

/**
 * One chat room. Its WebSockets hibernate: between messages the object may leave
 * memory while the sockets stay open, so who is who lives in their attachments.
 */
export class Room extends DurableObject<Env> {
	constructor(ctx: DurableObjectState, env: Env) {
		super(ctx, env);
		ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL)");
		ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair("ping", "pong"));
	}

	override async fetch(request: Request): Promise<Response> {
		const name = (new URL(request.url).searchParams.get("name") ?? "").slice(0, 40) || "somebody";
		const { 0: client, 1: server } = new WebSocketPair();
		this.ctx.acceptWebSocket(server);
		server.serializeAttachment({ name });
		const rows = this.ctx.storage.sql
			.exec<{ line: string }>("SELECT line FROM (SELECT id, line FROM messages ORDER BY id DESC LIMIT ?) ORDER BY id", HISTORY)
			.toArray();
		for (const row of rows) server.send(row.line);
		return new Response(null, { status: 101, webSocket: client });
	}

	override async webSocketMessage(ws: WebSocket, message: string | ArrayBuffer): Promise<void> {
		if (typeof message !== "string") return;
		const { name } = ws.deserializeAttachment() as { name: string };
		const line = JSON.stringify({ name, text: message.slice(0, MAX_TEXT) });
		this.ctx.storage.sql.exec("INSERT INTO messages (line) VALUES (?)", line);
		for (const socket of this.ctx.getWebSockets()) socket.send(line);
	}

	override async webSocketClose(ws: WebSocket, code: number): Promise<void> {
		ws.close(code === 1005 || code === 1006 ? 1000 : code);
	}
}

export default {
	/** The page comes from public/; /ws/<room>?name=<name> is the room's socket. */
	async fetch(request: Request, env: Env): Promise<Response> {
		const match = new URL(request.url).pathname.match(/^\/ws\/([^/]{1,64})$/);
		if (!match) return new Response("not found\n", { status: 404 });
		if (request.headers.get("Upgrade")?.toLowerCase() !== "websocket") {
			return new Response("a WebSocket is expected\n", { status: 426, headers: { Upgrade: "websocket" } });
		}
		return env.ROOMS.getByName(match[1]).fetch(request);
	},
};
