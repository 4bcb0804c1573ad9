package wrangler

import "slices"

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
