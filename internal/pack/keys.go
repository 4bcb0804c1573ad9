package pack

// keyKind is what is done with a key of a configuration.
type keyKind int

const (
	unknown keyKind = iota
	// taken keys are sent.
	taken
	// handled keys are applied here and not sent.
	handled
	// noise are keys for editors and tools: left out without a word.
	noise
	// cloudflare are keys that only mean something there: left out, and named.
	cloudflare
	// bundler are options of the bundler that a runtime does not take: the project is
	// bundled here when it uses one.
	bundler
	// refused are keys that ask for something that no runtime gives.
	refused
)

// keyRule is what is known of one key.
type keyRule struct {
	kind keyKind
	// inherited: an environment that does not say it has the top level's.
	inherited bool
	// todo says what to do about a refused key.
	todo string
}

const (
	noService   = "the runtime has no such service: remove it, with what needs it"
	oldFormat   = "it belongs to Workers that are no modules: "
	notInFleets = "fleets have nothing like it: remove it, with what needs it"
)

// keys are the top-level keys of Wrangler's, by what is done with them.
var keys = func() map[string]keyRule {
	m := map[string]keyRule{
		"env":   {kind: handled},
		"build": {kind: handled, inherited: true},
		// A build tool's own.
		"access":                 {refused, true, "who may call an application is not decided here; check it in the Worker, or remove the key if anybody may"},
		"exports":                {refused, true, "say the classes in `migrations` and `durable_objects`"},
		"secrets":                {kind: handled},
		"site":                   {refused, false, "serve the files with `assets` instead: {\"directory\": …}"},
		"pages_build_output_dir": {refused, false, "this is a Pages project: name its directory in `assets`, and its Worker in `main`"},
		"webpack_config":         {refused, false, "esbuild bundles: remove it"},
		"wasm_modules":           {refused, false, oldFormat + "import the .wasm file instead"},
		"text_blobs":             {refused, false, oldFormat + "import the text file instead"},
		"data_blobs":             {refused, false, oldFormat + "import the file instead"},
		"connect":                {refused, false, "applications take HTTP alone: remove it"},
		"version_metadata":       {refused, false, notInFleets},
		"dispatch_namespaces":    {refused, false, notInFleets},
	}
	add := func(kind keyKind, inherited bool, todo string, names ...string) {
		for _, n := range names {
			m[n] = keyRule{kind, inherited, todo}
		}
	}
	add(taken, true, "", "name", "main", "compatibility_date", "compatibility_flags", "migrations", "assets", "triggers", "no_bundle", "rules")
	add(taken, false, "", "durable_objects", "services", "vars", "d1_databases", "kv_namespaces", "queues", "workflows",
		"r2_buckets", "worker_loaders", "containers", "define")
	add(noise, true, "", "$schema", "configPath", "userConfigPath", "topLevelName", "definedEnvironments", "targetEnvironment",
		"legacy_env", "type", "python_modules")
	add(cloudflare, true, "", "account_id", "routes", "route", "workers_dev", "preview_urls", "observability", "placement", "limits",
		"logpush", "upload_source_maps", "minify", "keep_names", "preserve_file_names", "usage_model", "first_party_worker",
		"compliance_region", "cache", "previews")
	add(cloudflare, false, "", "dev", "keep_vars", "send_metrics", "zone_id", "tail_consumers", "streaming_tail_consumers",
		"cloudchamber", "dependencies_instrumentation", "addresses")
	add(bundler, true, "", "jsx_factory", "jsx_fragment", "tsconfig", "base_dir", "find_additional_modules")
	add(bundler, false, "", "alias")
	add(refused, false, noService, "ai", "ai_search", "ai_search_namespaces", "agent_memory", "analytics", "analytics_engine_datasets",
		"artifacts", "browser", "flagship", "hyperdrive", "images", "k2", "media", "mtls_certificates", "pipelines", "ratelimits",
		"secrets_store_secrets", "send_email", "stream", "unsafe", "unsafe_hello_world", "vectorize", "vpc_networks", "vpc_services")
	add(refused, true, noService, "logfwdr")
	return m
}()

// defaults are values of bundler options that change nothing.
var defaults = map[string]string{
	"jsx_factory":  `"React.createElement"`,
	"jsx_fragment": `"React.Fragment"`,
}

// nested are keys inside of others that only mean something to Wrangler and at
// Cloudflare, by the path to the object that has them.
var nested = map[string][]string{
	"kv_namespaces[]":            {"preview_id", "remote", "experimental_remote"},
	"d1_databases[]":             {"preview_database_id", "jurisdiction", "remote", "experimental_remote", "database_internal_env"},
	"r2_buckets[]":               {"preview_bucket_name", "jurisdiction", "remote", "experimental_remote"},
	"services[]":                 {"remote", "experimental_remote"},
	"workflows[]":                {"remote", "experimental_remote", "jurisdiction"},
	"queues.producers[]":         {"remote", "experimental_remote"},
	"durable_objects.bindings[]": {"remote", "experimental_remote"},
	"assets":                     {"experimental_serve_directly"},
}
