package artifact

import (
	"errors"
	"io/fs"
	"os"

	"github.com/scafo/scafo"
)

// ConfigNames are the names of the runtime's configuration at an archive's root,
// the first that exists is taken.
var ConfigNames = []string{"wrangler.jsonc", "wrangler.json"}

// FindConfig is the name of the configuration in an unpacked artifact.
func FindConfig(dir string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", DiskError(err)
	}
	defer root.Close()
	for _, name := range ConfigNames {
		// Not through a link: which file the runtime is given is not for a link to say.
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || !info.Mode().IsRegular() {
			return "", scafo.Errorf(scafo.CodeInvalidInput, "%s at the root of the artifact is no file", name)
		}
		return name, nil
	}
	if _, err := root.Lstat("wrangler.toml"); err == nil {
		return "", scafo.Errorf(scafo.CodeInvalidInput, "the artifact's configuration is a wrangler.toml; it is to be a wrangler.jsonc or a wrangler.json")
	}
	return "", scafo.Errorf(scafo.CodeInvalidInput, "the artifact has neither a wrangler.jsonc nor a wrangler.json at its root")
}
