//go:build broken

package sim

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/mistake"
)

var (
	brokenSeeds = flag.Int("broken-seeds", 10000, "within how many seeds each deliberate mistake has to be caught")
	rareFlag    = flag.Bool("rare", false, "make those too that take hundreds of seeds to be caught")
	mistakeFlag = flag.String("mistake", "", "make this mistake alone")
)

// rare are the mistakes that need several things to go wrong at once.
var rare = []mistake.Mistake{mistake.OrderIgnored, mistake.DeletionNotChecked}

// TestBrokenVariants makes one deliberate mistake after another, and has the
// simulation catch it.
func TestBrokenVariants(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many fleets")
	}
	*exactFlag = true // a mistake that was caught is caught again
	for _, m := range mistake.All {
		if *mistakeFlag != "" && *mistakeFlag != string(m) {
			continue
		}
		if slices.Contains(rare, m) && !*rareFlag && *mistakeFlag == "" {
			continue
		}
		t.Run(string(m), func(t *testing.T) {
			begun := time.Now()
			done, caught, err := fleets(t.Context(), job{Seeds: *brokenSeeds, Failures: 1, Mistake: string(m)})
			if err != nil {
				t.Fatal(err)
			}
			if len(caught) == 0 {
				t.Fatalf("%d seeds, and nothing is wrong", done)
			}
			t.Logf("caught by seed %d, one of %d, in %s: %s", caught[0].Seed, done, time.Since(begun).Round(time.Second/10), caught[0].Violation)
			if *showFlag {
				t.Log(caught[0])
			}
		})
	}
}

// What is no mistake is not caught: a build that could make them, and makes none, is
// as good as any other.
func TestNoMistakeIsMade(t *testing.T) {
	for _, m := range mistake.All {
		if mistake.Made(m) || strings.TrimSpace(string(m)) == "" {
			t.Errorf("%q is made", m)
		}
	}
}
