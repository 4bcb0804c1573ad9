package bundle

import (
	"errors"
	"fmt"
	"path/filepath"
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
	for i, e := range errs {
		if i == maxErrors {
			out = append(out, fmt.Errorf("and %d more", len(errs)-i))
			break
		}
		out = append(out, errors.New(b.message(e)))
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
	if name, ok := unresolvedPackage(m.Text); ok {
		s += fmt.Sprintf("\n  is the package %q installed? run npm install in the project before you deploy", name)
	}
	return s
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
	rest, ok := strings.CutPrefix(text, `Could not resolve "`)
	name, _, found := strings.Cut(rest, `"`)
	return name, ok && found && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "/")
}
