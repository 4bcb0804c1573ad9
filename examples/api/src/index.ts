import { Buffer } from "node:buffer";
import { createHash } from "node:crypto";
import { Hono } from "hono";
import units from "../data/units.json";
import usage from "./usage.md";

type Bindings = { GREETING: string };

/** Every unit with its kind and its size in the kind's base unit. */
const known = new Map(
  Object.entries(units).flatMap(([kind, of]) =>
    Object.entries(of).map(([name, size]): [string, { kind: string; size: number }] => [name, { kind, size }]),
  ),
);

// Node's own modules are there: the tag follows from what is answered.
const listing = JSON.stringify(units);
const tag = `"${createHash("sha256").update(listing).digest("hex").slice(0, 16)}"`;

const app = new Hono<{ Bindings: Bindings }>();

app.get("/", (c) => c.text(`${c.env.GREETING}\n\n${usage}`));

app.get("/units", (c) => {
  c.header("ETag", tag);
  if (c.req.header("If-None-Match") === tag) return c.body(null, 304);
  c.header("Content-Type", "application/json");
  return c.body(Buffer.from(listing));
});

app.get("/convert/:from/:to", (c) => {
  const from = known.get(c.req.param("from"));
  const to = known.get(c.req.param("to"));
  const value = Number(c.req.query("value") ?? 1);
  if (!from || !to) return c.json({ error: "no such unit" }, 404);
  if (from.kind !== to.kind) return c.json({ error: `${from.kind} is no ${to.kind}` }, 400);
  if (!Number.isFinite(value)) return c.json({ error: "value is no number" }, 400);
  return c.json({ value: (value * from.size) / to.size, unit: c.req.param("to") });
});

app.notFound((c) => c.json({ error: "nothing here; / says what there is" }, 404));

export default app;
