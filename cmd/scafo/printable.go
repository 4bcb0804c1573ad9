package main

import (
	"strconv"
	"strings"
	"unicode"
)

// printable is text of somebody else's (a Worker's error, a line of its log) as it may
// go to a terminal: what could command one is shown instead of sent.
func printable(s string) string { return escape(s, "\n\t") }

// oneLine is the first line of such a text, for a cell of a table.
func oneLine(s string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if strings.TrimSpace(rest) != "" {
		first += " …"
	}
	return escape(strings.ReplaceAll(first, "\t", " "), "")
}

func escape(s, but string) string {
	keep := func(r rune) bool { return strings.ContainsRune(but, r) || unicode.IsPrint(r) }
	if strings.IndexFunc(s, func(r rune) bool { return !keep(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if keep(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
