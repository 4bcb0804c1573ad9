import { WorkflowEntrypoint, type WorkflowEvent, type WorkflowStep } from "cloudflare:workers";

type Job = { id: string; text: string };
type Params = { text: string; dead?: boolean };

interface Env {
	JOBS: Queue<Job>;
	COUNTING: Workflow<Params>;
}

const MAX_TEXT = 10_000; // characters
const DEAD = "dead-jobs";

/** Counts words, slowly. A step that is done is not done again, whatever ends in between. */
export class Counting extends WorkflowEntrypoint<Env, Params> {
	override async run(event: WorkflowEvent<Params>, step: WorkflowStep) {
		if (event.payload.dead) return "given up: there are no words";
		const words = await step.do("split", async () => event.payload.text.split(/\s+/).filter((w) => w !== ""));
		await step.sleep("think", "2 seconds");
		return await step.do("count", { retries: { limit: 3, delay: "1 second" } }, async () => `${words.length} words`);
	}
}

/** A message may come twice: the second time its workflow is there already. */
async function begin(env: Env, job: Job, dead: boolean): Promise<void> {
	await env.COUNTING.createBatch([{ id: job.id, params: { text: job.text, dead } }]);
}

export default {
	/** POST / with a text begins a job; GET /<id> says how far it is. */
	async fetch(request: Request, env: Env): Promise<Response> {
		if (request.method === "POST") {
			const id = crypto.randomUUID();
			await env.JOBS.send({ id, text: (await request.text()).slice(0, MAX_TEXT) });
			return new Response(`${id}\n`, { status: 202 });
		}
		const id = new URL(request.url).pathname.slice(1);
		if (id === "") return new Response('POST a text, then GET /<the id in the answer>\n');
		try {
			const { status, output } = await (await env.COUNTING.get(id)).status();
			return Response.json({ status, output });
		} catch {
			return Response.json({ status: "waiting, or no such job" }, { status: 404 });
		}
	},

	async queue(batch: MessageBatch<Job>, env: Env): Promise<void> {
		for (const message of batch.messages) {
			const empty = message.body.text.trim() === "";
			if (empty && batch.queue !== DEAD) {
				console.warn(`job ${message.body.id} has no words, try ${message.attempts}`);
				message.retry();
				continue;
			}
			await begin(env, message.body, empty);
			message.ack();
		}
	},
};
