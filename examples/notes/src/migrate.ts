import first from "../migrations/0001_notes.sql";
import second from "../migrations/0002_written.sql";

/** In order; a file that has run once is never changed, the next change is a new file. */
const migrations: [name: string, sql: string][] = [
	["0001_notes", first],
	["0002_written", second],
];

const statements = (sql: string) => sql.split(";").filter((s) => s.trim() !== "");

async function migrate(db: D1Database): Promise<void> {
	await db.exec("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)");
	const { results } = await db.prepare("SELECT name FROM migrations").all<{ name: string }>();
	const done = new Set(results.map((row) => row.name));
	for (const [name, sql] of migrations) {
		if (done.has(name)) continue;
		// One transaction: if another process was faster, the first statement fails and
		// nothing of it has happened.
		const batch = [db.prepare("INSERT INTO migrations VALUES (?)").bind(name), ...statements(sql).map((s) => db.prepare(s))];
		await db.batch(batch).catch(async (error) => {
			const there = await db.prepare("SELECT 1 FROM migrations WHERE name = ?").bind(name).first();
			if (there === null) throw error;
		});
	}
}

let ready: Promise<void> | undefined;

/** Resolves once the database has every table. It asks once in each process. */
export function tables(db: D1Database): Promise<void> {
	ready ??= migrate(db).catch((error) => {
		ready = undefined; // the next request tries again
		throw error;
	});
	return ready;
}
