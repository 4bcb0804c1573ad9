package project

import (
	"errors"
	"testing"

	"github.com/scafo/scafo/internal/wrangler"
)

// FuzzConfiguration: whatever the file says, the answer is a configuration or a
// refusal that says where.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(base(`"durable_objects": {"bindings": [{"name": "C", "class_name": "C"}]}, "migrations": [{"tag": "v1", "new_sqlite_classes": ["C"]}]`)))
	f.Add([]byte(base(`"assets": {"directory": "p", "run_worker_first": ["/*"]}, "rules": [{"type": "Text", "globs": ["**"]}], // c`)))
	f.Add([]byte(base(`"migrations": [{"tag": "a", "renamed_classes": [{"from": "A", "to": "B"}], "deleted_classes": ["A"]}], "vars": {"A": [1, null]}`)))
	f.Add([]byte("\xef\xbb\xbf{"))
	f.Add([]byte(base(`"queues": {"producers": [{"binding": "Q", "queue": "q", "delivery_delay": 1}], "consumers": [{"queue": "q", "max_concurrency": null}]}`)))
	f.Add([]byte(base(`"kv_namespaces": [{"binding": "K"}], "d1_databases": [{"binding": "D", "database_name": "d"}], "triggers": {"crons": ["0 0 L-2W 2 MON#5"]}`)))
	f.Add([]byte(base(`"workflows": [{"binding": "W", "name": "w", "class_name": "W", "limits": {"steps": 1}}], "services": [{"binding": "S", "service": "app", "props": {}}]`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := &Project{Dir: "/", File: "wrangler.jsonc"}
		err := p.read(text)
		var c *wrangler.ConfigError
		if err != nil && !errors.As(err, &c) {
			t.Errorf("a refusal without a place: %v", err)
		}
		if err == nil && (p.Config.Name == "" || p.Config.Main == "" && p.Config.Assets == nil) {
			t.Errorf("taken: %+v", p.Config)
		}
	})
}
