package wrangler

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// cronField is one of the five fields of a cron expression.
type cronField struct {
	name       string
	least, max int
	names      []string // of the values from least on
}

var (
	cronMinute  = cronField{name: "minute", max: 59}
	cronHour    = cronField{name: "hour", max: 23}
	cronDay     = cronField{name: "day of the month", least: 1, max: 31}
	cronMonth   = cronField{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}}
	cronWeekday = cronField{"weekday", 1, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}}
)

// CheckCron holds a cron expression to Cloudflare's dialect, as the runtime reads
// it: five fields in UTC, weekdays from Sunday, 1, to Saturday, 7, and L, W and # in
// the fields of days. One that never comes due is refused. It returns the expression
// with one space between its fields.
func CheckCron(expression string) (string, error) {
	f := strings.Fields(expression)
	if len(f) != 5 {
		return "", fmt.Errorf("it has %d fields, want minute, hour, day of the month, month and weekday", len(f))
	}
	if _, err := cronMinute.list(f[0]); err != nil {
		return "", err
	}
	if _, err := cronHour.list(f[1]); err != nil {
		return "", err
	}
	months, err := cronMonth.list(f[3])
	if err != nil {
		return "", err
	}
	if err := checkWeekday(f[4]); err != nil {
		return "", err
	}
	due, err := dueIn(f[2])
	if err != nil {
		return "", err
	}
	// With both fields of days given, a day that fits either one is due.
	if f[4] == "*" && !slices.ContainsFunc(months, func(m int) bool { return due(longest[m-1]) }) {
		return "", fmt.Errorf("it never comes due: no such month has a day of the month %s", f[2])
	}
	return strings.Join(f, " "), nil
}

// longest are the days that each month has at the most.
var longest = [...]int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// list reads a list of values, ranges and steps, and returns the values.
func (f cronField) list(text string) ([]int, error) {
	var out []int
	items := strings.Split(text, ",")
	for _, item := range items {
		if item == "*" && len(items) > 1 {
			return nil, fmt.Errorf("the %s has * inside of a list", f.name)
		}
		spec, stepText, stepped := strings.Cut(item, "/")
		step := 1
		if stepped {
			n, ok := number(stepText)
			if !ok || n < 1 || n > f.max-f.least {
				return nil, fmt.Errorf("the %s %q has a step that is not from 1 to %d", f.name, item, f.max-f.least)
			}
			step = n
		}
		first, last := f.least, f.max
		if spec != "*" {
			var err error
			from, to, ranged := strings.Cut(spec, "-")
			if first, err = f.value(from); err != nil {
				return nil, err
			}
			switch {
			case ranged:
				if last, err = f.value(to); err != nil {
					return nil, err
				}
			case !stepped:
				last = first
			}
		}
		if first > last {
			return nil, fmt.Errorf("the %s %q is a range that goes down: write it as two", f.name, item)
		}
		for v := first; v <= last; v += step {
			out = append(out, v)
		}
	}
	return out, nil
}

func (f cronField) value(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.least + i, nil
	}
	n, ok := number(text)
	if !ok || n < f.least || n > f.max {
		return 0, fmt.Errorf("the %s %q is not from %d to %d", f.name, text, f.least, f.max)
	}
	return n, nil
}

// number reads digits and nothing else.
func number(s string) (int, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// dueIn reads the day of the month, and says whether a month with so many days can
// have it.
func dueIn(text string) (func(days int) bool, error) {
	if text == "*" || text == "L" || text == "LW" {
		return func(int) bool { return true }, nil
	}
	if before, ok := strings.CutPrefix(text, "L-"); ok {
		n, ok := number(strings.TrimSuffix(before, "W"))
		if !ok || n < 1 || n > 30 {
			return nil, fmt.Errorf("the %s %q is not from L-1 to L-30", cronDay.name, text)
		}
		return func(days int) bool { return n < days }, nil
	}
	if day, ok := strings.CutSuffix(text, "W"); ok {
		n, err := cronDay.value(day)
		return func(days int) bool { return n <= days }, err
	}
	all, err := cronDay.list(text)
	return func(days int) bool { return slices.Min(all) <= days }, err
}

func checkWeekday(text string) error {
	if text == "*" || text == "L" {
		return nil
	}
	if day, ok := strings.CutSuffix(text, "L"); ok {
		_, err := cronWeekday.value(day)
		return err
	}
	if day, nth, ok := strings.Cut(text, "#"); ok {
		if n, isNumber := number(nth); !isNumber || n < 1 || n > 5 {
			return fmt.Errorf("the %s %q is not one of the first to the fifth", cronWeekday.name, text)
		}
		_, err := cronWeekday.value(day)
		return err
	}
	_, err := cronWeekday.list(text)
	return err
}
