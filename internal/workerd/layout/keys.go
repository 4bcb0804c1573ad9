package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/scafo/scafo/internal/wrangler"
)

// Keys under the application's prefix.
const (
	PointerKey   = "deploy/current.json"
	manifestName = "manifest.json"
	assetsName   = "assets.json"
	blobPrefix   = "deploy-blobs/assets/sha256/"
)

// Limits of a deployment.
const (
	MaxAssets     = wrangler.MaxAssets
	MaxAssetBytes = wrangler.MaxAssetBytes
	MaxAssetTotal = wrangler.MaxAssetTotal
	MaxRules      = wrangler.MaxRules // of _headers and of _redirects
	MaxModules    = 1_000
	MaxModule     = 64 << 20 // of all modules together, as they are published
	MaxSourceMap  = 8 << 20
	maxName       = 512      // of a module
	maxSegment    = 200      // of a key
	maxJSON       = 16 << 20 // of a manifest or an index that is read
	versionLength = 16
)

var (
	scriptPattern  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,62}$`)
	versionPattern = regexp.MustCompile(`^[0-9a-f]{16}$`)
	digestPattern  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// ValidScript reports whether s may name a script: letters, digits, hyphens and
// underscores, at most 63, with no hyphen in front.
func ValidScript(s string) bool { return scriptPattern.MatchString(s) }

// Prefix is the directory of a deployment, with a slash at its end.
func Prefix(script, version string) string { return "deploy/" + script + "/" + version + "/" }

// ScriptKey is the pointer of one script.
func ScriptKey(script string) string { return "deploy/" + script + "/current.json" }

// BlobKey is the key of an asset's bytes.
func BlobKey(sha string) string { return blobPrefix + sha[:2] + "/" + sha }

func moduleKey(prefix string, m Module) string { return prefix + "modules/" + m.Name }

// MigratedKey says by its being there that the databases of a deployment have had its
// migrations.
func (m *Manifest) MigratedKey() string { return Prefix(m.ScriptName, m.Version) + "migrated.json" }

// SourceMapKey is where the source map of the main module lies, if there is one.
func (m *Manifest) SourceMapKey() string { return Prefix(m.ScriptName, m.Version) + "main.map" }

// Digest is the SHA-256 of b in hex.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Encode renders the manifest as it lies in the bucket, and its version.
func (m *Manifest) Encode() (body []byte, version string, err error) {
	body, err = json.Marshal(m)
	if err != nil {
		return nil, "", err
	}
	return body, Digest(body)[:versionLength], nil
}

// ValidModuleName checks that a module's name can be part of a key.
func ValidModuleName(name string) error {
	if len(name) > maxName || !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("module name %q: want a relative path of at most %d bytes without . and ..", name, maxName)
	}
	for s := range strings.SplitSeq(name, "/") {
		if len(s) > maxSegment {
			return fmt.Errorf("module name %q: a part has more than %d bytes", name, maxSegment)
		}
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f || r == '\\' {
			return fmt.Errorf("module name %q has a control character or a backslash", name)
		}
	}
	return nil
}

// check holds what was read from the bucket to the rules that Publish keeps.
func (m *Manifest) check() error {
	switch {
	case m.V > ManifestVersion:
		return fmt.Errorf("manifest of format %d, which is newer than this program (%d)", m.V, ManifestVersion)
	case m.V < 1:
		return fmt.Errorf("manifest of format %d", m.V)
	case m.Main == "" && m.Assets == nil:
		return fmt.Errorf("manifest with neither a main module nor assets")
	case len(m.Modules) > MaxModules:
		return fmt.Errorf("manifest with more than %d modules", MaxModules)
	}
	main := m.Main == ""
	for _, mod := range m.Modules {
		if err := ValidModuleName(mod.Name); err != nil {
			return err
		}
		if !digestPattern.MatchString(mod.SHA256) || mod.Bytes < 0 {
			return fmt.Errorf("module %q has no digest", mod.Name)
		}
		main = main || mod.Name == m.Main
	}
	if !main {
		return fmt.Errorf("manifest without its main module %q", m.Main)
	}
	if m.Assets != nil && !digestPattern.MatchString(m.Assets.Index) {
		return fmt.Errorf("assets without an index")
	}
	return nil
}

func (p Pointer) check() error {
	if !ValidScript(p.ScriptName) || !versionPattern.MatchString(p.Version) || p.Prefix != Prefix(p.ScriptName, p.Version) {
		return fmt.Errorf("%s names no deployment", PointerKey)
	}
	return nil
}
