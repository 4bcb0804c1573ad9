package wrangler

import (
	"slices"
	"strings"
)

// Nearest is the known name that s is most likely meant to be, or empty.
func Nearest(s string, known []string) string {
	slices.Sort(known)
	best, least := "", max(2, len(s)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(s), k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of insertions, deletions and replacements between two
// words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
