// Applies to each database what it does not have yet. The table is the one that
// Wrangler makes, so a database that was moved here goes on where it was.
const quoted = (name) => '"' + name.replaceAll('"', '""') + '"';
// What is said of an object that moves, or whose owner is gone.
const away = (e) => e?.retryable === true || /Network connection lost|disconnected|bucket is away/i.test(String(e?.message ?? e));

async function migrate(db, { table, files }, at, applied) {
  const names = quoted(table);
  await db.prepare(`CREATE TABLE IF NOT EXISTS ${names} (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, applied_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL)`).run();
  const { results } = await db.prepare(`SELECT name FROM ${names}`).all();
  const done = new Set(results.map((row) => row.name));
  for (const { name, sql } of files) {
    if (done.has(name)) continue;
    at.file = name;
    // One transaction. The name comes first: where somebody else was faster it is
    // refused, and nothing of the file has happened.
    const batch = [db.prepare(`INSERT INTO ${names} (name) VALUES (?)`).bind(name)];
    if (sql.trim() !== "") batch.push(db.prepare(sql));
    try {
      await db.batch(batch);
    } catch (e) {
      if (away(e) || (await db.prepare(`SELECT 1 FROM ${names} WHERE name = ?`).bind(name).first()) === null) throw e;
      continue;
    }
    applied.push(name);
  }
}

export default {
  async fetch(_, env) {
    const applied = [];
    for (const [i, of] of env.MIGRATIONS.entries()) {
      const at = { database: of.database, file: "" };
      try {
        await migrate(env["DB" + i], of, at, applied);
      } catch (e) {
        const error = String(e?.message ?? e).replace(/^D1_ERROR: /, "");
        return Response.json({ ...at, applied, error, away: away(e) });
      }
    }
    return Response.json({ applied });
  },
};
