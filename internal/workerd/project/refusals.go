package project

import (
	"maps"
	"slices"

	"github.com/scafo/scafo/internal/wrangler"
)

// What to do about a key that is refused, by kind.
const (
	onlyCloudflare = "it only means something at Cloudflare: remove it, or deploy with `scafo deploy`, which leaves it out"
	noSuchService  = "the runtime has no such service: remove it, with what needs it"
	bundlerOption  = "this release's bundler has no such option: remove it, or bundle beforehand and set no_bundle"
)

// refused are keys of Wrangler's that are not taken, with what to do instead.
var refused = map[string]string{
	"env":   "choose an environment before: `scafo deploy --env NAME` merges it into the top level",
	"build": "run the build before: `scafo deploy` does, or run it by hand and remove the key",
	"site":  "serve the files with `assets` instead: {\"directory\": …}",
	"pages_build_output_dir": "this is a Pages project: name its directory in `assets` instead, " +
		"and its Worker in `main`",
	"type": "remove it: bundling needs no type", "webpack_config": "remove it: esbuild bundles",
	"python_modules": "Workers in Python are not served",
	"legacy_env":     "remove it: environments are chosen before",
	"exports":        "say the classes in `migrations` and `durable_objects`",

	"r2_buckets":     "the runtime has no such service: keep files up to 25 MiB in a KV namespace, larger ones in a store of your own through its HTTP API",
	"worker_loaders": "the runtime would run code that came at run time beside yours: bring the code into this Worker",
	"containers":     "the runtime starts no containers: run it elsewhere and call its address with fetch()",

	"alias": bundlerOption, "base_dir": bundlerOption, "find_additional_modules": bundlerOption,
	"preserve_file_names": bundlerOption, "jsx_factory": bundlerOption, "jsx_fragment": bundlerOption,
	"tsconfig": bundlerOption, "minify": bundlerOption, "keep_names": bundlerOption,
	"wasm_modules": "import the .wasm file instead", "text_blobs": "import the text file instead",
	"data_blobs": "import the file instead",
}

func init() {
	for _, k := range []string{
		"account_id", "routes", "route", "workers_dev", "preview_urls", "observability", "placement", "limits",
		"logpush", "dev", "upload_source_maps", "keep_vars", "send_metrics", "usage_model", "tail_consumers",
		"streaming_tail_consumers", "first_party_worker", "zone_id", "cloudchamber", "compliance_region",
	} {
		refused[k] = onlyCloudflare
	}
	for _, k := range []string{
		"ai", "ai_search", "vectorize", "hyperdrive", "browser", "analytics_engine_datasets", "send_email",
		"mtls_certificates", "dispatch_namespaces", "pipelines", "secrets_store_secrets", "images", "version_metadata",
		"ratelimits", "unsafe", "unsafe_hello_world", "vpc_services", "media", "stream", "logfwdr", "cache", "secrets",
	} {
		refused[k] = noSuchService
	}
}

// refuseKey says why a top-level key is not taken, and what to do.
func refuseKey(m *wrangler.Member, taken map[string]func(*wrangler.Value) error) *ConfigError {
	if todo, ok := refused[m.Name]; ok {
		return m.Errorf("unsupported key %q: %s", m.Name, todo)
	}
	known := append(slices.Collect(maps.Keys(taken)), slices.Collect(maps.Keys(refused))...)
	if near := wrangler.Nearest(m.Name, known); near != "" {
		return m.Errorf("unknown key %q: did you mean %q?", m.Name, near)
	}
	return m.Errorf("unknown key %q: remove it", m.Name)
}
