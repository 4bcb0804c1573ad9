package pack

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/wrangler"
)

func TestEnvironments(t *testing.T) {
	const shop = `{
		"name": "shop", "main": "src/a.js", "compatibility_date": "2026-11-01", "compatibility_flags": ["nodejs_compat"],
		"routes": ["shop.example.com/*"], "workers_dev": false,
		"vars": {"A": "top", "B": "top"}, "define": {"D": "1"},
		"kv_namespaces": [{"binding": "KV", "id": "top"}],
		"durable_objects": {"bindings": [{"name": "O", "class_name": "O"}]},
		"migrations": [{"tag": "v1", "new_sqlite_classes": ["O"]}],
		"env": {
			"staging": {"vars": {"A": "staging"}, "route": "staging.example.com", "compatibility_date": "2026-10-01"},
			"named": {"name": "other", "kv_namespaces": [{"binding": "KV", "id": "named"}], "define": {}, "vars": {"A": "1", "B": "2"},
				"durable_objects": {"bindings": []}, "compatibility_flags": []},
			"empty": {}
		}
	}`
	top := map[string]any{
		"name": "shop", "main": "src/a.js", "compatibility_date": "2026-11-01", "compatibility_flags": []any{"nodejs_compat"},
		"vars": map[string]any{"A": "top", "B": "top"}, "define": map[string]any{"D": "1"},
		"kv_namespaces":   []any{map[string]any{"binding": "KV", "id": "top"}},
		"durable_objects": map[string]any{"bindings": []any{map[string]any{"name": "O", "class_name": "O"}}},
		"migrations":      []any{map[string]any{"tag": "v1", "new_sqlite_classes": []any{"O"}}},
	}
	without := func(keys ...string) map[string]any {
		out := map[string]any{}
		for k, v := range top {
			if !slices.Contains(keys, k) {
				out[k] = v
			}
		}
		return out
	}
	and := func(m map[string]any, kv ...any) map[string]any {
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return m
	}
	const leftOut = "left out, since it only means something at Cloudflare: "
	for name, c := range map[string]struct {
		env   string
		want  map[string]any
		notes []string
	}{
		"none": {"", top, []string{leftOut + "routes, workers_dev", "for the route shop.example.com/*: scafo domains add shop shop.example.com"}},
		"merged": {"staging", and(without("define", "kv_namespaces", "durable_objects"), "name", "shop-staging", "compatibility_date", "2026-10-01", "vars", map[string]any{"A": "staging"}), []string{
			leftOut + "workers_dev, route", `of the top level's "vars", env.staging does not have B`,
			`"define" of the top level does not hold for env.staging, which does not have it`,
			`"kv_namespaces" of the top level does not hold for env.staging, which does not have it`,
			`"durable_objects" of the top level does not hold for env.staging, which does not have it`,
			"for the route staging.example.com: scafo domains add shop-staging staging.example.com",
		}},
		"with a name": {"named", and(without("define", "durable_objects", "compatibility_flags"), "name", "other", "vars", map[string]any{"A": "1", "B": "2"},
			"kv_namespaces", []any{map[string]any{"binding": "KV", "id": "named"}}), []string{
			leftOut + "routes, workers_dev", `of the top level's "define", env.named does not have D`,
			"for the route shop.example.com/*: scafo domains add other shop.example.com",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := run(t, project{"wrangler.jsonc": shop, "src/a.js": worker}, Options{Env: c.env})
			if got := sent(t, p); !reflect.DeepEqual(got, c.want) {
				t.Errorf("sent\n%v\nwant\n%v", got, c.want)
			}
			if !reflect.DeepEqual(p.Notes, c.notes) {
				t.Errorf("notes\n%q\nwant\n%q", p.Notes, c.notes)
			}
			if p.Name != c.want["name"] {
				t.Errorf("the application is %s", p.Name)
			}
		})
	}
	_, err := Load(Options{Path: project{"wrangler.jsonc": shop}.write(t), Env: "prod"})
	var none *NoEnvironment
	if !errors.As(err, &none) || err.Error() != `wrangler.jsonc has no environment "prod": it has empty, named, staging` {
		t.Errorf("got %v", err)
	}
	p := run(t, plain, Options{Env: "prod"})
	if p.Name != "app-prod" || !reflect.DeepEqual(p.Notes, []string{`wrangler.jsonc has no environments: "prod" only changes the name`}) {
		t.Errorf("%s, notes %q", p.Name, p.Notes)
	}
	if p := run(t, plain, Options{Env: "prod", Name: "mine"}); p.Name != "mine" {
		t.Errorf("the application is %s", p.Name)
	}
}

// Every key of Wrangler's schema is known here.
func TestEveryKeyIsKnown(t *testing.T) {
	// The top-level keys of wrangler 4.164.0.
	const all = `$schema access account_id addresses agent_memory ai ai_search ai_search_namespaces alias analytics
		analytics_engine_datasets artifacts assets base_dir browser build cache cloudchamber compatibility_date
		compatibility_flags compliance_region connect containers d1_databases data_blobs define dependencies_instrumentation
		dev dispatch_namespaces durable_objects env exports find_additional_modules first_party_worker flagship hyperdrive
		images jsx_factory jsx_fragment k2 keep_names keep_vars kv_namespaces limits logfwdr logpush main media migrations
		minify mtls_certificates name no_bundle observability pages_build_output_dir pipelines placement preserve_file_names
		preview_urls previews python_modules queues r2_buckets ratelimits route routes rules secrets secrets_store_secrets
		send_email send_metrics services site stream streaming_tail_consumers tail_consumers text_blobs triggers tsconfig
		unsafe unsafe_hello_world upload_source_maps vars vectorize version_metadata vpc_networks vpc_services wasm_modules
		worker_loaders workers_dev workflows`
	for name := range strings.FieldsSeq(all) {
		if keys[name].kind == unknown {
			t.Errorf("%s is not known", name)
		}
	}
	// What a runtime with celld's contract takes, at 0.6.
	const contract = `name main compatibility_date compatibility_flags durable_objects migrations assets services triggers
		vars d1_databases no_bundle kv_namespaces queues workflows r2_buckets worker_loaders containers define rules`
	want := map[string]bool{}
	for name := range strings.FieldsSeq(contract) {
		want[name] = true
	}
	for name, rule := range keys {
		if (rule.kind == taken) != want[name] {
			t.Errorf("%s: taken is %v", name, rule.kind == taken)
		}
		if (rule.kind == refused) != (rule.todo != "") {
			t.Errorf("%s: what to do is %q", name, rule.todo)
		}
	}
}

func TestKeysAreLeftOut(t *testing.T) {
	p := run(t, plain.with(project{"wrangler.jsonc": "\xef\xbb\xbf" + settings(`
		"$schema": "node_modules/wrangler/config-schema.json", // an editor's
		"observability": {"enabled": true}, "account_id": "abc", "limits": {"cpu_ms": 50}, "minify": true, "keep_vars": true, "logpush": false,
		"ai": {}, "vectorize": [], "unsafe": {"bindings": []}, "send_email": null, "kv_namespaces": [], "legacy_env": true,
		"queues": {"producers": [], "consumers": []}, "triggers": {"crons": []}, "python_modules": {"exclude": ["x"]},
		"d1_databases": [{"binding": "DB", "database_name": "d", "database_id": "1", "preview_database_id": "2"}],
		"r2_buckets": [{"binding": "B", "bucket_name": "b", "remote": true}],
		"workflows": [{"binding": "W", "name": "w", "class_name": "W", "limits": {"steps": 5}, "jurisdiction": "eu"}],
		"vars": {"EMPTY": "", "NULL": null, "LIKE": "// no /* comment */", "remote": true, "limits": {"remote": 1}},
		"env": {"x": {"ai": {"binding": "AI"}}},`)}), Options{})
	want := map[string]any{
		"name": "app", "main": "src/a.js", "compatibility_date": "2026-11-01",
		"d1_databases": []any{map[string]any{"binding": "DB", "database_name": "d", "database_id": "1"}},
		"r2_buckets":   []any{map[string]any{"binding": "B", "bucket_name": "b"}},
		"workflows":    []any{map[string]any{"binding": "W", "name": "w", "class_name": "W", "limits": map[string]any{"steps": float64(5)}}},
		"vars":         map[string]any{"EMPTY": "", "NULL": nil, "LIKE": "// no /* comment */", "remote": true, "limits": map[string]any{"remote": float64(1)}},
	}
	if got := sent(t, p); !reflect.DeepEqual(got, want) {
		t.Errorf("sent\n%v\nwant\n%v", got, want)
	}
	const note = "left out, since it only means something at Cloudflare: observability, account_id, limits, minify, keep_vars, logpush, " +
		"d1_databases.preview_database_id, r2_buckets.remote, workflows.jurisdiction"
	if !reflect.DeepEqual(p.Notes, []string{note}) {
		t.Errorf("notes\n%q\nwant\n%q", p.Notes, note)
	}
}

func TestRoutesNameTheirCommands(t *testing.T) {
	for pattern, want := range map[string]string{
		`"shop.example.com"`:               "scafo domains add app shop.example.com",
		`"shop.example.com/*"`:             "scafo domains add app shop.example.com",
		`"https://shop.example.com/api/*"`: "scafo domains add app shop.example.com",
		`"*.example.com/*"`:                "scafo domains add app example.com --wildcard",
		`"*example.com/*"`:                 "scafo domains add app example.com --wildcard",
		`{"pattern": "Shop.Example.com", "custom_domain": true}`:     "scafo domains add app shop.example.com",
		`{"pattern": "example.com/*", "zone_name": "example.com"}`:   "scafo domains add app example.com",
		`{"zone_name": "example.com"}`:                               "",
		`"<your domain>"`:                                            "",
		`"localhost"`:                                                "",
		`{"pattern": 1}`:                                             "",
		`"shop.example.com/*", "https://shop.example.com/second/*" `: "scafo domains add app shop.example.com",
	} {
		p := run(t, plain.with(project{"wrangler.jsonc": settings(`"routes": [` + pattern + `]`)}), Options{})
		got := ""
		for _, n := range p.Notes[1:] {
			_, command, _ := strings.Cut(n, ": ")
			got += command
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", pattern, got, want)
		}
	}
}

func TestTheCommandLineEditsWhatIsSent(t *testing.T) {
	p := run(t, plain.with(project{"wrangler.jsonc": settings(`"vars": {"A": {"deep": 1}, "B": "kept"},
		"services": [{"binding": "SELF", "service": "app"}, {"binding": "X", "service": "x"}],
		"durable_objects": {"bindings": [{"name": "O", "class_name": "O", "script_name": "app"}]}`)}), Options{
		Name: "mine", Vars: map[string]string{"A": `"quoted" = yes`, "C": ""}, NoBundle: true,
	})
	want := map[string]any{
		"name": "mine", "main": "src/a.js", "compatibility_date": "2026-11-01", "no_bundle": true,
		"vars":            map[string]any{"A": `"quoted" = yes`, "B": "kept", "C": ""},
		"services":        []any{map[string]any{"binding": "SELF", "service": "mine"}, map[string]any{"binding": "X", "service": "x"}},
		"durable_objects": map[string]any{"bindings": []any{map[string]any{"name": "O", "class_name": "O", "script_name": "mine"}}},
	}
	if got := sent(t, p); !reflect.DeepEqual(got, want) || p.Name != "mine" {
		t.Errorf("sent\n%v\nwant\n%v", got, want)
	}
	p = run(t, plain.with(project{"wrangler.jsonc": settings(`"secrets": {"required": ["KEY"]}`)}), Options{Vars: map[string]string{"KEY": "k"}})
	if got := sent(t, p); !reflect.DeepEqual(got["vars"], map[string]any{"KEY": "k"}) || got["secrets"] != nil {
		t.Errorf("sent %v", got)
	}
}

func TestRedirectedConfigurations(t *testing.T) {
	built := project{
		"wrangler.jsonc":               `{"name": "not-read", "main": "src/a.js", "ai": {"binding": "AI"}}`,
		".wrangler/deploy/config.json": `{"configPath": "../../dist/app/wrangler.json", "auxiliaryWorkers": []}`,
		"dist/app/wrangler.json": `{"configPath": "/x", "userConfigPath": "/y", "topLevelName": "app", "definedEnvironments": ["staging"], "targetEnvironment": "staging",
			"name": "app-staging", "main": "index.js", "compatibility_date": "2026-11-01", "no_bundle": true, "legacy_env": true,
			"rules": [{"type": "ESModule", "globs": ["**/*.js", "**/*.mjs"]}], "assets": {"directory": "../client"}, "dev": {"ip": "localhost"},
			"jsx_factory": "React.createElement", "python_modules": {"exclude": ["**/*.pyc"]}, "kv_namespaces": [], "logfwdr": {"bindings": []}, "cloudchamber": {}}`,
		"dist/app/index.js": "import './assets/chunk.js';\n" + worker, "dist/app/assets/chunk.js": "", "dist/app/late.mjs": "", "dist/app/.vite/manifest.json": "{}",
		"dist/client/index.html": "", "src/a.js": "",
	}
	p := run(t, built, Options{Env: "staging"})
	if got := paths(p); !reflect.DeepEqual(got, []string{"dist/app/assets/chunk.js", "dist/app/index.js", "dist/app/late.mjs", "dist/client/index.html", "wrangler.json"}) {
		t.Errorf("packed %v", got)
	}
	want := map[string]any{
		"name": "app-staging", "main": "dist/app/index.js", "compatibility_date": "2026-11-01", "no_bundle": true,
		"rules":  []any{map[string]any{"type": "ESModule", "globs": []any{"**/*.js", "**/*.mjs"}}},
		"assets": map[string]any{"directory": "dist/client"},
	}
	if got := sent(t, p); !reflect.DeepEqual(got, want) {
		t.Errorf("sent\n%v\nwant\n%v", got, want)
	}
	if got := []string{"left out, since it only means something at Cloudflare: dev", "using dist/app/wrangler.json, which .wrangler/deploy/config.json names"}; !reflect.DeepEqual(p.Notes, got) {
		t.Errorf("notes %q", p.Notes)
	}
	run(t, built, Options{}) // without --env it is what it was built for
}

func TestBuildCommands(t *testing.T) {
	tree := project{
		"wrangler.jsonc": `{"name": "app", "main": "dist/a.js", "compatibility_date": "2026-11-01", "assets": {"directory": "dist/public"},
			"build": {"command": "echo to stdout; echo to stderr >&2; mkdir -p public && cp ../src/a.js a.js && echo $WRANGLER_COMMAND > public/x", "cwd": "dist", "watch_dir": "src"}}`,
		"src/a.js": worker, "dist/old": "",
	}
	var out strings.Builder
	var steps []string
	p := run(t, tree, Options{Output: &out, Progress: func(s string) { steps = append(steps, s) }})
	if got := contents(t, p); got["dist/a.js"] != worker || got["dist/public/x"] != "deploy\n" || len(got) != 3 {
		t.Errorf("packed %v", got)
	}
	if got := sent(t, p)["build"]; got != nil {
		t.Errorf("the command is sent: %v", got)
	}
	if !strings.Contains(out.String(), "to stdout\n") || !strings.Contains(out.String(), "to stderr\n") {
		t.Errorf("output %q", out.String())
	}
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "building: echo") {
		t.Errorf("steps %q", steps)
	}
	if _, err := Run(t.Context(), Options{Path: tree.write(t), NoBuild: true}); err == nil || !strings.HasSuffix(err.Error(), `main "dist/a.js" is not there: the build was to make it`) {
		t.Errorf("got %v", err)
	}
	// The configuration is refused before the build takes its time.
	broken := tree.with(project{"wrangler.jsonc": `{"name": "app", "main": "a.js", "compatibility_date": "2026-11-01", "ai": {"binding": "A"}, "build": {"command": "touch ran"}}`})
	dir := broken.write(t)
	if _, err := Run(t.Context(), Options{Path: dir}); err == nil {
		t.Error("no refusal")
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the build ran")
	}
}

func TestPlacesLeadBack(t *testing.T) {
	p := run(t, plain.with(project{"wrangler.jsonc": "{\n\t// a comment\n\t\"name\": \"app\", \"main\": \"src/a.js\",\n\t\"observability\": {\"enabled\": true},\n" +
		"\t\"compatibility_date\": \"2026-11-01\",\n\t\"vars\": {\"A\": 1,\n\t\t\"B\": [true, {\"C\": 2}]}\n}"}), Options{Vars: map[string]string{"D": "d"}})
	body := contents(t, p)["wrangler.jsonc"]
	for text, want := range map[string]string{
		`"name"`: "wrangler.jsonc:3:2", `"app"`: "wrangler.jsonc:3:10", `"vars"`: "wrangler.jsonc:6:2", `"B"`: "wrangler.jsonc:7:3", `true`: "wrangler.jsonc:7:9", `2`: "wrangler.jsonc:5:24",
		`"C"`: "wrangler.jsonc:7:16", `"D"`: "wrangler.jsonc",
	} {
		i := strings.Index(body, text)
		line := strings.Count(body[:i], "\n") + 1
		column := i - strings.LastIndexByte(body[:i], '\n')
		for _, prefix := range []string{"", "/staging/x/", "./"} {
			said := prefix + "wrangler.jsonc:" + strconv.Itoa(line) + ":" + strconv.Itoa(column)
			if got := p.Explain("see " + said + ": so"); got != "see "+want+": so" {
				t.Errorf("%s at %s is explained as %q", text, said, got)
			}
		}
	}
	if got := p.Explain("a.js:1:1 wrangler.jsonc wrangler.jsonc:99999999999999999999:1"); got != "a.js:1:1 wrangler.jsonc wrangler.jsonc:99999999999999999999:1" {
		t.Errorf("got %q", got)
	}
	// A bundle that was made here leads back to its sources.
	p = run(t, plain.with(project{"src/a.js": "import '../../b.js';\n\nthrow new Error('no');\n" + worker, "../b.js": ""}), Options{})
	code := contents(t, p)["scafo-worker/index.js"]
	i := strings.Index(code, "throw")
	at := "index.js:" + strconv.Itoa(strings.Count(code[:i], "\n")+1) + ":1"
	if got := p.Explain("Uncaught Error: no\n  at " + at); got != "Uncaught Error: no\n  at src/a.js:3:1" {
		t.Errorf("%s is explained as %q", at, got)
	}
}

func TestEncodingReadsTheSame(t *testing.T) {
	const text = `{"a": [], "b": {}, "c": [1.50, -2e10, null, true, "\u00e9\" \\ </script>"], "d": {"e": {"f": [[]]}}}`
	v, err := wrangler.Parse("x", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := wrangler.Encode(v)
	if !reflect.DeepEqual(parsed(t, string(body)), parsed(t, text)) || !strings.Contains(string(body), "1.50") {
		t.Errorf("got %s", body)
	}
}

// Variables of the development stay; their names are said, and their values never.
func TestVariablesOfTheDevelopmentStay(t *testing.T) {
	tree := plain.with(project{
		"wrangler.jsonc": settings(`"vars": {"GIVEN": "x"}, "env": {"staging": {}}`),
		".dev.vars":      "# NOT=this\nAPI_KEY=\"s3cret\"\nexport OTHER = s3cret\nGIVEN=1\nAPI_KEY=again\nMORE=\"a\nb\"\n", ".dev.vars.staging": "STAGE=s3cret",
	})
	for env, want := range map[string]string{
		"":        ".dev.vars stays here, so the Worker does not have API_KEY, OTHER: --var gives it what it needs",
		"staging": ".dev.vars.staging stays here, so the Worker does not have STAGE: --var gives it what it needs",
	} {
		p := run(t, tree, Options{Env: env, Vars: map[string]string{"MORE": "m"}})
		if !slices.Contains(p.Notes, want) || strings.Contains(strings.Join(p.Notes, " "), "s3cret") {
			t.Errorf("%q: notes %q", env, p.Notes)
		}
	}
}
