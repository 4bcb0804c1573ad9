package main

import (
	"fmt"
	"slices"
	"time"
)

// median is the middle of the values; of an even number, the mean of the two.
func median[T int64 | float64 | time.Duration](values []T) T {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// percentile is the value below which that share of the sorted values lies.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// ratios divides pairwise.
func ratios[T int64 | float64 | time.Duration](a, b []T) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		if b[i] != 0 {
			out[i] = float64(a[i]) / float64(b[i])
		}
	}
	return out
}

func ms(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond)) }

const mib = 1 << 20

func mibs(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/mib) }
