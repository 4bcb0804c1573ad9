package instance

import (
	"fmt"
	"strings"
)

// node is a value of a configuration in Cap'n Proto's text form, already
// rendered. Building values this way keeps quoting in one place.
type node string

// text renders a string literal. The text form knows bytes, not code points, so
// what is not plain ASCII goes through as it is, and control characters as \xNN.
func text(s string) node {
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return node(b.String())
}

func boolean(v bool) node { return node(fmt.Sprint(v)) }

func number(v int64) node { return node(fmt.Sprint(v)) }

// embed reads a file under the import directory; name begins with a slash.
func embed(name string) node { return "embed " + text(name) }

// field is one member of a struct.
type field struct {
	name  string
	value node // empty: left out
}

func object(fields ...field) node {
	parts := make([]string, 0, len(fields))
	for _, f := range fields {
		if f.value != "" {
			parts = append(parts, f.name+" = "+string(f.value))
		}
	}
	return node("(" + strings.Join(parts, ", ") + ")")
}

func list(items ...node) node {
	parts := make([]string, len(items))
	for i, n := range items {
		parts[i] = string(n)
	}
	return node("[" + strings.Join(parts, ",\n  ") + "]")
}

func texts(items []string) node {
	nodes := make([]node, len(items))
	for i, s := range items {
		nodes[i] = text(s)
	}
	return list(nodes...)
}
