package wrangler

import (
	"regexp"
	"strings"
)

// Ignore is a list of patterns in the language of .gitignore.
type Ignore []ignorePattern

type ignorePattern struct {
	pattern *regexp.Regexp
	negated bool
	dirOnly bool
}

// ParseIgnore reads patterns. A line that is no pattern is passed over, as git
// does.
func ParseIgnore(text string) Ignore {
	var out Ignore
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
			line = strings.TrimSuffix(line, " ")
		}
		var p ignorePattern
		line, p.negated = strings.CutPrefix(line, "!")
		line, p.dirOnly = strings.CutSuffix(line, "/")
		if line == "" {
			continue
		}
		re, err := regexp.Compile(ignoreRegexp(line))
		if err != nil {
			continue
		}
		p.pattern = re
		out = append(out, p)
	}
	return out
}

// ignoreRegexp translates one pattern. One without a slash inside holds at every
// depth.
func ignoreRegexp(p string) string {
	var b strings.Builder
	b.WriteString(`^(?s:`)
	if rest, anchored := strings.CutPrefix(p, "/"); anchored {
		p = rest
	} else if !strings.Contains(p, "/") {
		b.WriteString(`(?:.*/)?`)
	}
	for i := 0; i < len(p); {
		switch c := p[i]; {
		case strings.HasPrefix(p[i:], "**/") && (i == 0 || p[i-1] == '/'):
			b.WriteString(`(?:.*/)?`)
			i += 3
		case p[i:] == "**" && (i == 0 || p[i-1] == '/'):
			b.WriteString(`.+`)
			i += 2
		case c == '*':
			for i < len(p) && p[i] == '*' {
				i++
			}
			b.WriteString(`[^/]*`)
		case c == '?':
			b.WriteString(`[^/]`)
			i++
		case c == '[':
			class, n := bracket(p[i:])
			b.WriteString(class)
			i += n
		case c == '\\' && i+1 < len(p):
			end := runeEnd(p, i+1)
			b.WriteString(regexp.QuoteMeta(p[i+1 : end]))
			i = end
		default:
			end := runeEnd(p, i)
			b.WriteString(regexp.QuoteMeta(p[i:end]))
			i = end
		}
	}
	b.WriteString(`)$`)
	return b.String()
}

// runeEnd is the end of the character that begins at i.
func runeEnd(s string, i int) int {
	for j := range s[i:] {
		if j > 0 {
			return i + j
		}
	}
	return len(s)
}

// bracket translates a character class at the start of p, and says how long it
// is; one that does not end stands for itself.
func bracket(p string) (string, int) {
	end := strings.IndexByte(p[1:], ']')
	if end <= 0 {
		return `\[`, 1
	}
	inside := p[1 : end+1]
	negated := ""
	if inside[0] == '!' || inside[0] == '^' {
		inside, negated = inside[1:], "^"
	}
	if inside == "" {
		return `\[`, 1
	}
	return "[" + negated + strings.NewReplacer(`\`, `\\`, `[`, `\[`).Replace(inside) + "]", end + 2
}

// Match reports whether a file is ignored: by a pattern for itself, or because a
// directory above it is. Of several patterns the last one counts.
func (g Ignore) Match(path string) bool {
	for i := range path {
		if path[i] == '/' && g.MatchOne(path[:i], true) {
			return true
		}
	}
	return g.MatchOne(path, false)
}

// MatchOne looks at one path, without those above it.
func (g Ignore) MatchOne(path string, dir bool) bool {
	for i := len(g) - 1; i >= 0; i-- {
		if p := g[i]; (dir || !p.dirOnly) && p.pattern.MatchString(path) {
			return !p.negated
		}
	}
	return false
}
