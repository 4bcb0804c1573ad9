package wrangler

import (
	"slices"
	"strings"
)

// nodeCompatDate is the compatibility date from which on Node's modules are there
// without a flag.
const nodeCompatDate = "2026-08-04"

// NodeCompat reports whether a Worker has Node's modules, so that `buffer` names the
// runtime's and no package.
func NodeCompat(date string, flags []string) bool {
	if slices.Contains(flags, "nodejs_compat") || slices.Contains(flags, "nodejs_compat_v2") {
		return true
	}
	return date >= nodeCompatDate && !slices.Contains(flags, "no_nodejs_compat")
}

const (
	// globalsDate is the date from which on Node's globals come with the modules.
	globalsDate = "2024-09-23"
	// allNodeDate is a date by which a runtime has every module without more flags.
	allNodeDate = "2026-04-01"
)

// nodeFlags enable modules of Node's in a Worker whose compatibility date is older than
// they are. Wrangler puts modules of its own in their place; the runtime's are better.
var nodeFlags = map[string][]string{
	"http":    {"enable_nodejs_http_modules", "enable_nodejs_http_server_modules"},
	"https":   {"enable_nodejs_http_modules", "enable_nodejs_http_server_modules"},
	"process": {"enable_nodejs_process_v2"},
}

func init() {
	for name := range strings.FieldsSeq(`child_process cluster console dgram domain fs http2 inspector os perf_hooks punycode
		readline repl sqlite trace_events tty v8 vm wasi worker_threads`) {
		nodeFlags[name] = []string{"enable_nodejs_" + name + "_module"}
	}
}

// NodeFlags are the compatibility flags that a Worker with Node's modules needs beside
// its own for those that it uses: their names, without `node:`, and `process` where it
// uses the global one. They are sorted.
func NodeFlags(date string, flags, uses []string) []string {
	if date >= allNodeDate || !NodeCompat(date, flags) {
		return nil
	}
	globals := slices.Contains(flags, "nodejs_compat_v2") || date >= globalsDate && !slices.Contains(flags, "no_nodejs_compat_v2")
	var out []string
	for _, name := range uses {
		name, _, _ = strings.Cut(name, "/")
		if name == "process" && !globals {
			continue
		}
		for _, f := range nodeFlags[name] {
			against := "dis" + strings.TrimPrefix(f, "en")
			if !slices.Contains(flags, f) && !slices.Contains(flags, against) {
				out = append(out, f)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
