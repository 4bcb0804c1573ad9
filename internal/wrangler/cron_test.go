package wrangler

import (
	"strings"
	"testing"
)

// The expressions of Cloudflare's dialect: what its parser takes and what it
// refuses, and what the runtime refuses beyond it.
func TestCheckCron(t *testing.T) {
	for _, good := range []string{
		"* * * * *", "*/5 * * * *", "0,30 0-23/2 1 JAN-DEC MON-fri", "59 23 31 12 7", "0 0 L * *", "0 0 LW * *", "0 0 L-30 1 *",
		"0 0 L-2W * *", "0 0 15W * *", "0 0 1 * L", "0 0 * * 6L", "0 0 * * MON#5", "5/10 * * * *", "0 0 29 2 *", "0 0 31 2 MON",
		"0 0 30,31 2,4 *", "0-59/59 * * * *",
	} {
		if got, err := CheckCron(" " + strings.ReplaceAll(good, " ", "\t ")); err != nil || got != good {
			t.Errorf("%q: got %q, %v", good, got, err)
		}
	}
	for bad, want := range map[string]string{
		"":                             "0 fields",
		"* * * * * *":                  "6 fields",
		"@daily":                       "1 fields",
		"60 * * * *":                   `the minute "60" is not from 0 to 59`,
		"* 24 * * *":                   "the hour",
		"* * 0 * *":                    "the day of the month",
		"* * 32 * *":                   "the day of the month",
		"* * * 13 *":                   "the month",
		"* * * * 0":                    `the weekday "0" is not from 1 to 7`,
		"* * * * 8":                    "the weekday",
		"* * * * fun":                  "the weekday",
		"*/0 * * * *":                  "has a step that is not from 1 to 59",
		"*/60 * * * *":                 "has a step",
		"1/2/3 * * * *":                "has a step",
		"*/ * * * *":                   "has a step",
		"5-1 * * * *":                  "goes down",
		"1-2-3 * * * *":                "the minute",
		"*,1 * * * *":                  "has * inside of a list",
		", * * * *":                    "the minute",
		"-1 * * * *":                   "the minute",
		"+1 * * * *":                   "the minute",
		"* * L-0 * *":                  "is not from L-1 to L-30",
		"* * L-31 * *":                 "is not from L-1 to L-30",
		"* * 32W * *":                  "the day of the month",
		"* * l * *":                    "the day of the month",
		"* * * * MON#6":                "is not one of the first to the fifth",
		"* * * * MON#1#2":              "is not one of the first to the fifth",
		"* * * * 9L":                   "the weekday",
		"0 0 30 2 *":                   "it never comes due",
		"0 0 31 4,6,9,11 *":            "it never comes due",
		"0 0 L-29 2 *":                 "it never comes due",
		"0 0 30W 2 *":                  "it never comes due",
		"99999999999999999999 * * * *": "the minute",
	} {
		if got, err := CheckCron(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %q, %v, want %q", bad, got, err, want)
		}
	}
}
