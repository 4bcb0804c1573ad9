package contracttest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Crons come due by the minute, so they run beside the other checks: a Worker on two
// nodes from the suite's beginning, which is looked at when the others are over.

const (
	eachMinute = "* * * * *"
	// rarelyDue is not due but at one minute in four years.
	rarelyDue = "0 0 29 2 *"
)

// crons is that Worker.
type crons struct {
	b     *bench
	on    *running
	begun time.Time
}

// beginCrons publishes it and serves it on two nodes.
func beginCrons(b *bench) *crons {
	code := strings.ReplaceAll(routes(`import { DurableObject } from "cloudflare:workers";
export class Runs extends DurableObject {
  async add(what) { await this.ctx.storage.put(what, ((await this.ctx.storage.get(what)) ?? 0) + 1); }
  async all() { return [...(await this.ctx.storage.list())].map(([what, times]) => ({ ...JSON.parse(what), times })); }
}`,
		`case "/runs": return Response.json(await env.RUNS.getByName("x").all());`,
	), "HANDLERS", `
  async scheduled(c, env) { await env.RUNS.getByName("x").add(JSON.stringify({ at: c.scheduledTime, cron: c.cron })); },`)
	b.deploy(files{"index.js": code, "wrangler.jsonc": config(object{
		"triggers":        object{"crons": []string{eachMinute, rarelyDue}},
		"durable_objects": object{"bindings": []object{{"name": "RUNS", "class_name": "Runs"}}},
		"migrations":      []object{{"tag": "v1", "new_sqlite_classes": []string{"Runs"}}},
	})})
	c := &crons{b: b, begun: time.Now()}
	c.on = b.serve("n1")
	b.serve("n2")
	return c
}

// check holds what has come due since then: each minute once, though there are two
// nodes, with the expression and the minute told, and nothing that was not due.
func (c *crons) check(t *testing.T) {
	b := *c.b
	b.T = t
	on := &running{b: &b, url: c.on.url}
	var runs []struct {
		At    int64  `json:"at"` // in milliseconds
		Cron  string `json:"cron"`
		Times int    `json:"times"`
	}
	b.until("a cron to come due", 2*patience, func() bool {
		if err := json.Unmarshal([]byte(on.settled("/runs")), &runs); err != nil {
			t.Fatal(err)
		}
		return len(runs) > 0
	})
	first := time.UnixMilli(runs[0].At)
	if late := first.Sub(c.begun); late < 0 || late > time.Minute+soon {
		t.Errorf("it came due first %s after the start", late)
	}
	if ago := time.Since(time.UnixMilli(runs[len(runs)-1].At)); ago > time.Minute+soon {
		t.Errorf("it last came due %s ago", ago)
	}
	for n, r := range runs {
		want := first.Add(time.Duration(n) * time.Minute)
		if r.Cron != eachMinute || r.At%time.Minute.Milliseconds() != 0 || r.At != want.UnixMilli() || r.Times != 1 {
			t.Errorf("run %d: %+v, want once, at %s", n, r, want.UTC())
		}
	}
	t.Logf("came due %d times", len(runs))
}
