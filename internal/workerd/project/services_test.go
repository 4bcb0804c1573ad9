package project

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/layout"
)

func pointer(n int64) *int64 { return &n }

func TestReadsServices(t *testing.T) {
	p, err := Open(tree(t, map[string]string{"wrangler.jsonc": base(`
	"triggers": {"crons": ["*/5 * * * *", " */5  * * * * ", "0 9 L * MON#2"]},
	"kv_namespaces": [{"binding": "KV", "id": "abc"}, {"binding": "NEW", "id": ""}],
	"d1_databases": [{"binding": "DB", "database_name": "db", "database_id": "1"}, {"binding": "DB2", "database_name": "named"}, {"binding": "DB3"}],
	"queues": {
		"producers": [{"binding": "Q", "queue": "jobs", "delivery_delay": 60}, {"binding": "P", "queue": "other"}],
		"consumers": [
			{"queue": "jobs", "type": "worker", "max_batch_size": 100, "max_batch_timeout": 0, "max_retries": 0, "retry_delay": 86400, "max_concurrency": 1, "dead_letter_queue": "dead"},
			{"queue": "dead", "max_concurrency": null},
		],
	},
	"workflows": [{"binding": "W", "name": "orders", "class_name": "Order", "script_name": "app", "limits": {"steps": 25000},
		"default_retention": {"success_retention": "1 day", "error_retention": "2.5 weeks"}}],
	"services": [{"binding": "SELF", "service": "app"}, {"binding": "E", "service": "app", "entrypoint": "Admin", "props": {"a": [1]}}],
	"durable_objects": {"bindings": [{"name": "C", "class_name": "C", "script_name": "app"}]},
	"migrations": [{"tag": "v1", "new_sqlite_classes": ["C"]}],`)}))
	if err != nil {
		t.Fatal(err)
	}
	want := layout.Services{
		Crons: []string{"*/5 * * * *", "0 9 L * MON#2"},
		KV:    []layout.Store{{Binding: "KV", ID: "abc"}, {Binding: "NEW", ID: "NEW"}},
		D1:    []layout.Store{{Binding: "DB", ID: "1"}, {Binding: "DB2", ID: "named"}, {Binding: "DB3", ID: "DB3"}},
		Producers: []layout.Producer{
			{Binding: "Q", Queue: "jobs", Delay: 60}, {Binding: "P", Queue: "other"},
		},
		Consumers: []layout.Consumer{
			{Queue: "jobs", MaxBatchSize: pointer(100), MaxBatchWait: pointer(0), MaxRetries: pointer(0), RetryDelay: pointer(86400), MaxConcurrency: pointer(1), DeadLetters: "dead"},
			{Queue: "dead"},
		},
		Workflows: []layout.Workflow{{Binding: "W", Name: "orders", Class: "Order", Steps: 25000, KeepFinished: "1 day", KeepFailed: "2.5 weeks"}},
		Bindings:  []layout.Entry{{Binding: "SELF"}, {Binding: "E", Entrypoint: "Admin", Props: json.RawMessage(`{"a":[1]}`)}},
	}
	if !reflect.DeepEqual(p.Config.Services, want) {
		t.Errorf("got  %+v\nwant %+v", p.Config.Services, want)
	}
}

func TestRefusesServices(t *testing.T) {
	consumer := func(rest string) string { return base(`"queues": {"consumers": [{"queue": "q"` + rest + `}]}`) }
	workflow := func(rest string) string {
		return base(`"workflows": [{"binding": "W", "name": "w", "class_name": "C"` + rest + `}]`)
	}
	for text, want := range map[string]string{
		base(`"triggers": {"crons": ["* * * *"]}`):                                                 `wrangler.jsonc:3:24: triggers.crons "* * * *": it has 4 fields, want minute, hour, day of the month, month and weekday`,
		base(`"triggers": {"crons": ["0 0 31 2 *"]}`):                                              "it never comes due",
		base(`"triggers": {"cron": []}`):                                                           `triggers has the unsupported key "cron"`,
		base(`"kv_namespaces": [{"id": "x"}]`):                                                     `wrangler.jsonc:3:19: an item of kv_namespaces has no "binding"`,
		base(`"kv_namespaces": [{"binding": "K", "title": "x"}]`):                                  `an item of kv_namespaces has the unsupported key "title"`,
		base(`"kv_namespaces": [{"binding": "K", "preview_id": "x"}]`):                             "it only means something at Cloudflare",
		base(`"kv_namespaces": [{"binding": "K", "id": "` + strings.Repeat("x", maxID+1) + `"}]`):  "its id has more than 256 bytes",
		base(`"d1_databases": [{"database_id": "x"}]`):                                             `an item of d1_databases has no "binding"`,
		base(`"d1_databases": [{"binding": "A"}], "vars": {"A": 1}`):                               `the binding "A" is given by vars and by d1_databases`,
		base(`"d1_databases": [{"binding": "A"}], "kv_namespaces": [{"binding": "A"}]`):            `the binding "A" is given by kv_namespaces and by d1_databases`,
		base(`"queues": {"producers": [{"binding": "Q"}]}`):                                        "an item of queues.producers needs binding and queue",
		base(`"queues": {"producers": [{"binding": "Q", "queue": "a b"}]}`):                        `the queue of a producer "a b": want letters`,
		base(`"queues": {"producers": [{"binding": "Q", "queue": "q", "delivery_delay": 86401}]}`): "delivery_delay is 86401, want a whole number from 0 to 86400",
		consumer(`, "type": "http_pull"`):                                                          "a queue cannot be pulled over HTTP",
		consumer(`, "max_batch_size": 101`):                                                        "max_batch_size is 101, want a whole number from 1 to 100",
		consumer(`, "max_batch_size": 1.5`):                                                        "max_batch_size is 1.5, want a whole number",
		consumer(`, "max_batch_timeout": 61`):                                                      "from 0 to 60",
		consumer(`, "max_retries": "3"`):                                                           "max_retries is a string, want a number",
		consumer(`, "max_concurrency": 0`):                                                         "from 1 to 250",
		consumer(`, "dead_letter_queue": "q"`):                                                     "is its own dead_letter_queue",
		consumer(`}, {"queue": "q"`):                                                               `the queue "q" has two consumers`,
		consumer(`, "visibility_timeout_ms": 1`):                                                   `unsupported key "visibility_timeout_ms"`,
		workflow(`, "script_name": "other"`):                                                       `"other" is another Worker`,
		workflow(`, "schedules": ["* * * * *"]`):                                                   "by triggers.crons",
		workflow(`, "concurrency": 1`):                                                             "does not bound how many",
		workflow(`, "limits": {"steps": 25001}`):                                                   "from 1 to 25000",
		workflow(`, "default_retention": {"success_retention": "soon"}`):                           `success_retention "soon": want a number and a unit`,
		workflow(`}, {"binding": "V", "name": "w", "class_name": "D"`):                             `the workflows "w" and "w" have the same name or the same class`,
		base(`"workflows": [{"binding": "W", "name": "-w", "class_name": "C"}]`):                   `the workflow "-w": want letters`,
		base(`"workflows": [{"binding": "W", "name": "w"}]`):                                       "needs binding, name and class_name",
		base(`"services": [{"binding": "S", "service": "other"}]`):                                 `:3:42: "other" is another Worker: applications do not reach into one another: call its address with fetch()`,
		base(`"services": [{"binding": "S"}]`):                                                     "an item of services needs binding and service",
		base(`"services": [{"binding": "S", "service": "app", "props": 1}]`):                       "the props of a service are a number, want an object",
		`{"name": "a", "compatibility_date": "2026-11-01", "assets": {"directory": "p"}, "triggers": {"crons": ["* * * * *"]}}`: `triggers: "main" is missing`,
	} {
		_, err := Open(tree(t, map[string]string{"wrangler.jsonc": text}))
		var c *ConfigError
		if !errors.As(err, &c) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n\tgot  %v\n\twant %q", text, err, want)
		}
	}
}

// TestFormatOfManifests: what needs nothing new stays the version it was.
func TestFormatOfManifests(t *testing.T) {
	files := map[string]string{"a.js": "export default {}"}
	plain, kv := mustBuild(t, with("", files)), mustBuild(t, with(`"kv_namespaces": [{"binding": "K"}]`, files))
	if plain.Bundle.Manifest.V != 1 || kv.Bundle.Manifest.V != 2 {
		t.Errorf("formats %d and %d", plain.Bundle.Manifest.V, kv.Bundle.Manifest.V)
	}
	body, _, err := plain.Bundle.Manifest.Encode()
	if err != nil || strings.Contains(string(body), "queue") {
		t.Errorf("%s %v", body, err)
	}
	for name, c := range map[string]struct {
		rest    string
		durable bool
	}{
		"plain": {"", false}, "kv": {`"kv_namespaces": [{"binding": "K"}]`, true}, "d1": {`"d1_databases": [{"binding": "K"}]`, true},
		"producer": {`"queues": {"producers": [{"binding": "Q", "queue": "q"}]}`, true}, "consumer": {`"queues": {"consumers": [{"queue": "q"}]}`, true},
		"workflow": {`"workflows": [{"binding": "W", "name": "w", "class_name": "C"}]`, true},
		"cron":     {`"triggers": {"crons": ["* * * * *"]}`, true}, "no cron": {`"triggers": {"crons": []}`, false},
		"entry": {`"services": [{"binding": "S", "service": "app"}]`, false},
	} {
		if got := mustBuild(t, with(c.rest, files)).Bundle.Manifest.Durable(); got != c.durable {
			t.Errorf("%s: durable %t", name, got)
		}
	}
}
