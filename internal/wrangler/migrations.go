package wrangler

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strconv"
)

// MigrationsDir is where the migrations of a D1 database lie unless it says otherwise.
const MigrationsDir = "migrations"

// Migrations are those of a directory's files that are migrations, in the order in which
// they are applied: by the number in front, and by name.
func Migrations(files []string) []string {
	var out []string
	for _, f := range files {
		if path.Ext(f) == ".sql" && f[0] != '.' {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(leading(a), leading(b)), cmp.Compare(a, b))
	})
	return out
}

// leading is the number that a name begins with; names without one come last.
func leading(name string) uint64 {
	n := 0
	for n < len(name) && name[n] >= '0' && name[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(name[:n], 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return v
}
