package bundle

import (
	"errors"
	"fmt"
	"os"
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
		if name, ok := unresolvedPackage(e.Text); ok && whyUnresolved(e) == "" && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if more := len(errs) - maxErrors; more > 0 {
		out = append(out, fmt.Errorf("and %d more", more))
	}
	switch len(missing) {
	case 0:
	case 1:
		out = append(out, fmt.Errorf("is the package %q installed? run %s in the project before you deploy", missing[0], b.installer()))
	default:
		out = append(out, fmt.Errorf("are these packages installed: %s? run %s in the project before you deploy", strings.Join(missing, ", "), b.installer()))
	}
	return &Error{errors.Join(out...)}
}

// message renders a message of esbuild's with where it points to.
func (b *bundler) message(m api.Message) string {
	l := m.Location
	if l == nil {
		return m.Text
	}
	if l.Namespace == "" || l.Namespace == "file" {
		file := l.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(b.o.Dir, file)
		}
		if real, err := filepath.EvalSymlinks(file); err == nil {
			file = real
		}
		if err := b.reach(file); err != nil {
			// A tsconfig.json may extend anything, and a package.json be a link to it.
			// What is in there is not shown.
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
	if why := whyUnresolved(m); why != "" {
		s += "\n  " + why
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

// whyUnresolved says why an import leads nowhere though the package may be there;
// empty where the bundler does not tell.
func whyUnresolved(m api.Message) string {
	name, ok := unresolvedPackage(m.Text)
	if !ok {
		return ""
	}
	for _, n := range m.Notes {
		switch {
		case strings.Contains(n.Text, "exported by package") && n.Location != nil:
			return fmt.Sprintf("the package %s is there, and its \"exports\" (%s:%d) have no such path for a Worker", name, n.Location.File, n.Location.Line)
		case strings.Contains(n.Text, "Plug'n'Play"):
			return fmt.Sprintf("Yarn's Plug'n'Play allows only what package.json lists: run yarn add %s", name)
		}
	}
	return ""
}

// installers are the programs that install a project's packages, by their lock file.
var installers = []struct{ lock, command string }{
	{"package-lock.json", "npm install"}, {"pnpm-lock.yaml", "pnpm install"}, {"yarn.lock", "yarn install"}, {"bun.lock", "bun install"}, {"bun.lockb", "bun install"},
}

// installer is the command that installs the packages of this project: the one whose
// lock file is nearest above it.
func (b *bundler) installer() string {
	for dir := b.o.Dir; ; dir = filepath.Dir(dir) {
		for _, i := range installers {
			if _, err := os.Stat(filepath.Join(dir, i.lock)); err == nil {
				return i.command
			}
		}
		if dir == filepath.Dir(dir) {
			return installers[0].command
		}
	}
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
