package instance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
	"github.com/scafo/scafo/internal/wrangler"
)

// withServices is a deployment that asks for everything.
func withServices() *layout.Manifest {
	two := int64(2)
	return &layout.Manifest{
		ScriptName: "app", Main: "index.js", CompatibilityDate: "2026-11-01",
		Modules: []layout.Module{{Name: "index.js", Type: layout.ESModule, SHA256: "main"}},
		Assets:  &layout.Assets{},
		Services: layout.Services{
			Crons: []string{"*/5 * * * *"},
			KV:    []layout.Store{{Binding: "KV", ID: "k"}}, D1: []layout.Store{{Binding: "DB", ID: "d"}},
			Producers: []layout.Producer{{Binding: "Q", Queue: "q"}, {Binding: "LATE", Queue: "q", Delay: 5}},
			Consumers: []layout.Consumer{{Queue: "q", MaxRetries: &two, DeadLetters: "dead"}},
			Workflows: []layout.Workflow{{Binding: "W", Name: "w", Class: "Flow", Steps: 7, KeepFailed: "1 day"}},
			Bindings:  []layout.Entry{{Binding: "SELF"}, {Binding: "E", Entrypoint: "Admin", Props: json.RawMessage(`{"a":1}`)}},
		},
	}
}

// TestConfigurationOfServices: what the runtime's own Workers ask for in their
// headers. The keys and names under which they keep state are not to change.
func TestConfigurationOfServices(t *testing.T) {
	s := &Spec{Deployment: &layout.Deployment{Dir: "/d", Manifest: withServices()}, Disk: "/disk", Cluster: &Cluster{Bucket: "s3://b"}}
	got, err := config(s, "/c")
	if err != nil {
		t.Fatal(err)
	}
	flat := strings.ReplaceAll(string(got), ",\n  ", ", ")
	for _, want := range []string{
		// the Worker's bindings
		`(name = "KV", kvNamespace = (name = "kv", props = (json = "{\"namespace\":\"k\"}")))`,
		`(name = "DB", wrapped = (moduleName = "cloudflare-internal:d1-api", innerBindings = [(name = "fetcher", service = (name = "d1", props = (json = "{\"database\":\"d\"}")))]))`,
		`(name = "Q", queue = (name = "queues", props = (json = "{\"queue\":\"q\"}")))`,
		`(name = "LATE", queue = (name = "queue-delays", props = (json = "{\"delay\":5,\"queue\":\"q\"}")))`,
		`(name = "W", wrapped = (moduleName = "cloudflare-internal:workflows-api", innerBindings = [(name = "fetcher", service = (name = "workflows", entrypoint = "WorkflowBinding", props = (json = "{\"workflow\":\"w\"}")))]))`,
		`(name = "SELF", service = (name = "assets"))`, // what answers requests
		`(name = "E", service = (name = "worker", entrypoint = "Admin", props = (json = "{\"a\":1}")))`,
		`workflowsEngine = (actorClass = (name = "workflows", entrypoint = "Engine"), workflows = [(className = "Flow", name = "w", bindingService = (name = "workflows", entrypoint = "WorkflowBinding", props = (json = "{\"workflow\":\"w\"}")))])`,
		// the services
		`bundled = "/workerd/kv.js")], compatibilityDate = "2026-01-01", compatibilityFlags = [], bindings = [(name = "SHARD", durableObjectNamespace = "KVNamespace"), (name = "BLOBS", service = "kv-values"), (name = "CLUSTERED", json = "true")], durableObjectNamespaces = [(className = "KVNamespace", uniqueKey = "KVNamespace", enableSql = true)], durableObjectStorage = (localDisk = "disk")`,
		`(name = "kv-values", bucket = (path = "kv"))`,
		`bundled = "/workerd/d1.js")], compatibilityDate = "2026-01-01", compatibilityFlags = [], bindings = [(name = "DATABASE", durableObjectNamespace = "D1Database")], durableObjectNamespaces = [(className = "D1Database", uniqueKey = "D1Database", enableSql = true)]`,
		`compatibilityFlags = ["service_binding_extra_handlers"], bindings = [(name = "SHARD", durableObjectNamespace = "QueueShard"), (name = "CONSUMERS", json = "{\"q\":{\"consumer\":\"worker\",\"maxRetries\":2,\"deadLetterQueue\":\"dead\"}}"), (name = "worker", service = "worker"), (name = "CLUSTERED", json = "true")]`,
		`(name = "SCHEDULE", durableObjectNamespace = "Schedule"), (name = "*/5 * * * *", service = "worker"), (name = "CRONS", json = "{\"*/5 * * * *\":[\"*/5 * * * *\"]}")`,
		`(name = "workflow:w", durableObjectNamespace = (className = "miniflare-workflows-w", serviceName = "worker")), (name = "WORKFLOWS", json = "{\"w\":{\"steps\":7,\"retention\":{\"error\":\"1 day\"}}}")`,
		`(name = "disk", disk = (path = "/disk", writable = true))`,
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the configuration lacks\n%s", want)
		}
	}
	if t.Failed() {
		t.Log(flat)
	}
}

// TestErrorsOfWorkflows: the engine has the flag that the Worker's date and flags
// imply, as the runtime gives it when it reads a project itself.
func TestErrorsOfWorkflows(t *testing.T) {
	for _, c := range []struct {
		date, flag string
		want       bool
	}{
		{"2026-05-13", "", false}, {"2026-05-14", "", true}, {"2026-11-01", otherErrors, false}, {"2024-01-01", ownErrors, true},
	} {
		m := withServices()
		m.CompatibilityDate, m.CompatibilityFlags = c.date, []string{c.flag}
		nodes, err := workflows(&Spec{Deployment: &layout.Deployment{Manifest: m}})
		if err != nil || strings.Contains(string(nodes[0]), ownErrors) != c.want {
			t.Errorf("%s %s: %s, %v", c.date, c.flag, nodes, err)
		}
	}
}

// TestTrialOfServices: nothing comes due in one, and nothing is shared.
func TestTrialOfServices(t *testing.T) {
	got, err := config(&Spec{Trial: true, Disk: "/run/disk", Deployment: &layout.Deployment{Dir: "/d", Manifest: withServices()}}, "")
	if err != nil {
		t.Fatal(err)
	}
	flat := string(got)
	for _, not := range []string{"cluster", "CLUSTERED", "cron.js", "Schedule", "maxRetries", "bucket"} {
		if strings.Contains(flat, not) {
			t.Errorf("it has %q", not)
		}
	}
	for _, want := range []string{`(name = "kv-values", disk = (path = "/run/disk/kv-values", writable = true))`, `json = "{}"`} {
		if !strings.Contains(flat, want) {
			t.Errorf("it lacks %s", want)
		}
	}
	if t.Failed() {
		t.Log(flat)
	}
}

// TestCronsAsTheRuntimeReadsThem: what the deploy takes and refuses is what the
// runtime's own parser does.
func TestCronsAsTheRuntimeReadsThem(t *testing.T) {
	var all []string
	for _, minute := range []string{"*", "5/10", "*/60", "1-5/2,7", "5-1", "*,1", "60", "", "1/2/3", "*/59", "0-", "07"} {
		all = append(all, minute+" * * * *")
	}
	for _, day := range []string{"L", "LW", "L-1", "L-30", "L-31", "L-29W", "15W", "W", "32", "31", "29,30", "L-", "L-0", "lw", "1-31/30"} {
		for _, month := range []string{"*", "2", "4,FEB", "jan-mar"} {
			for _, weekday := range []string{"*", "MON"} {
				all = append(all, fmt.Sprintf("0 0 %s %s %s", day, month, weekday))
			}
		}
	}
	for _, weekday := range []string{"L", "0", "7L", "FRI#5", "FRI#6", "#1", "1#", "SAT-SUN", "SUN-SAT", "8", "MON#1#2", "l", "mon,*"} {
		all = append(all, "0 0 * * "+weekday, "0 0 30 2 "+weekday)
	}
	services := make([]node, len(all))
	for i, c := range all {
		list, err := json.Marshal(map[string][]string{"self": {c}})
		if err != nil {
			t.Fatal(err)
		}
		services[i] = inside{service: fmt.Sprint("cron-", i), bundled: "cron.js", flags: []string{extraHandlers}, bindings: []node{
			binding("self", "service", text("self")), binding("CRONS", "json", text(string(list))),
		}}.render()
	}
	self := object(field{"modules", list(object(field{"name", text("a")}, field{"esModule", text("export default { scheduled() {} }")}))}, field{"compatibilityDate", text(servicesDate)})
	services = append(services, object(field{"name", text("self")}, field{"worker", self}),
		object(field{"name", text("disk")}, field{"disk", object(field{"path", text(t.TempDir())}, field{"writable", boolean(true)})}))
	file := filepath.Join(t.TempDir(), "c.capnp")
	body := fmt.Sprintf("using Workerd = import \"/workerd/workerd.capnp\";\nconst c :Workerd.Config = (services = %s, logging = (structuredLogging = false));\n", list(services...))
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	// Some of them are bad, so that it ends.
	out, err := exec.Command(workerdtest.Path(t), "serve", "--experimental", file, "c").CombinedOutput()
	if err == nil {
		t.Fatal("the runtime took all of them")
	}
	refused := map[string]bool{}
	for _, m := range regexp.MustCompile(`service (cron-\d+): .*cron trigger`).FindAllStringSubmatch(string(out), -1) {
		refused[m[1]] = true
	}
	if len(refused) == 0 {
		t.Fatalf("%s", out)
	}
	for i, c := range all {
		if _, err := wrangler.CheckCron(c); (err != nil) != refused[fmt.Sprint("cron-", i)] {
			t.Errorf("%q: %v, the runtime refuses it: %t", c, err, refused[fmt.Sprint("cron-", i)])
		}
	}
}
