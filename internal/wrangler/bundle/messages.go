package bundle

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

const (
	// maxErrors is how many errors of a build are shown.
	maxErrors = 10
	// maxShownLine is the longest line of a source that is shown with an error.
	maxShownLine = 120
)

func (b *bundler) failed(errs []api.Message) error {
	var out []error
	var missing []string
	for i, e := range errs {
		if i < maxErrors {
			out = append(out, errors.New(b.message(e)))
		}
		if name, ok := unresolvedPackage(e.Text); ok && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if more := len(errs) - maxErrors; more > 0 {
		out = append(out, fmt.Errorf("and %d more", more))
	}
	switch len(missing) {
	case 0:
	case 1:
		out = append(out, fmt.Errorf("is the package %q installed? run npm install in the project before you deploy", missing[0]))
	default:
		out = append(out, fmt.Errorf("are these packages installed: %s? run npm install in the project before you deploy", strings.Join(missing, ", ")))
	}
	return &Error{errors.Join(out...)}
}

// message renders a message of esbuild's with where it points to.
func (b *bundler) message(m api.Message) string {
	l := m.Location
	if l == nil {
		return m.Text
	}
	if !filepath.IsLocal(l.File) && (l.Namespace == "" || l.Namespace == "file") {
		file := l.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(b.o.Dir, file)
		}
		if err := b.reach(file); err != nil {
			// A tsconfig.json may extend anything. What is in there is not shown.
			return outside(l.File, err).Error()
		}
	}
	s := fmt.Sprintf("%s:%d:%d: %s", l.File, l.Line, l.Column+1, m.Text)
	if line := strings.TrimSpace(l.LineText); line != "" && len(line) <= maxShownLine {
		s += "\n    " + line
	}
	if name, ok := unresolved(m.Text); ok && strings.Contains(name, ":") {
		s += fmt.Sprintf("\n  %s is a module of a build tool: build the project first", name)
	}
	if ending, ok := unknownEnding(m.Text); ok {
		s += fmt.Sprintf("\n  a rule loads it as a module: \"rules\": [{\"type\": \"Data\", \"globs\": [\"**/*%s\"], \"fallthrough\": true}]", ending)
	}
	return s
}

// unknownEnding is the file name's ending that a message says nothing loads.
func unknownEnding(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, `No loader is configured for "`)
	ending, _, found := strings.Cut(rest, `"`)
	return ending, ok && found
}

// outside says of a file that is out of reach what to do.
func outside(name string, err error) error {
	if errors.Is(err, ErrOutside) {
		return fmt.Errorf("%s lies outside the project: bring it inside, or bundle before you deploy", name)
	}
	return err
}

// unresolvedPackage is the package that a message says cannot be found.
func unresolvedPackage(text string) (string, bool) {
	name, ok := unresolved(text)
	if !ok || strings.ContainsAny(name[:1], "./#") || strings.Contains(name, ":") {
		return "", false
	}
	parts := strings.SplitN(name, "/", 3)
	if name[0] == '@' && len(parts) > 1 {
		return parts[0] + "/" + parts[1], true
	}
	return parts[0], true
}

// unresolved is the import that a message says leads nowhere.
func unresolved(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, `Could not resolve "`)
	name, _, found := strings.Cut(rest, `"`)
	return name, ok && found && name != ""
}
