// Package layout is how an application's deployments lie in the bucket, under the
// application's own prefix:
//
//	deploy/current.json                       the pointer: which version is served
//	deploy/<script>/current.json              the same, for each script
//	deploy/<script>/<version>/manifest.json   what a deployment is made of
//	deploy/<script>/<version>/assets.json     the index of its assets
//	deploy/<script>/<version>/modules/<name>  its modules
//	deploy/<script>/<version>/main.map        leads from its main module to the project's files
//	deploy/<script>/<version>/migrated.json   there once its D1 migrations were applied
//	deploy-blobs/assets/sha256/<xx>/<sha>     assets, by digest
//
// Everything but the pointer is written before the pointer names it, and never
// changes afterwards.
package layout

import "encoding/json"

// Pointer is deploy/current.json: the version that every node should serve.
type Pointer struct {
	ScriptName string  `json:"script_name"`
	Version    string  `json:"version"`
	Prefix     string  `json:"prefix"` // deploy/<script>/<version>/
	Rollout    Rollout `json:"rollout"`
}

// Rollout is the share of the traffic that a version gets; always 100 here.
type Rollout struct {
	Percent int `json:"percent"`
}

// The formats of manifests. A manifest says the oldest one that has all it needs;
// one that is newer than ManifestVersion is not read.
const (
	ManifestVersion  = 3
	servicesManifest = 2 // without migrations of databases
	plainManifest    = 1 // without services
)

// Manifest says what a deployment is made of. Its version is a digest of its
// bytes, which hold the digests of everything else: a deployment that was changed
// is told from the one that was published.
type Manifest struct {
	V                  int                        `json:"v"`
	Product            string                     `json:"product"` // "celld-workerd"
	ScriptName         string                     `json:"script_name"`
	Version            string                     `json:"-"`
	Main               string                     `json:"main,omitempty"` // the first module's name; none: assets only
	CompatibilityDate  string                     `json:"compatibility_date"`
	CompatibilityFlags []string                   `json:"compatibility_flags,omitempty"`
	Modules            []Module                   `json:"modules"`
	Vars               map[string]json.RawMessage `json:"vars,omitempty"` // strings become text, the rest JSON
	DurableObjects     []DurableObject            `json:"durable_objects,omitempty"`
	Classes            []Class                    `json:"classes,omitempty"`
	Assets             *Assets                    `json:"assets,omitempty"`
	Services
}

// Durable reports whether the deployment keeps state, and so has to run in the
// cluster.
func (m *Manifest) Durable() bool { return len(m.Classes) > 0 || m.Services.Durable() }

// SetFormat says the oldest format that has what the manifest needs, so that the
// same content stays the same version.
func (m *Manifest) SetFormat() {
	m.V = plainManifest
	switch {
	case len(m.Migrations) > 0:
		m.V = ManifestVersion
	case m.Any():
		m.V = servicesManifest
	}
}

// ModuleType is how the runtime loads a module.
type ModuleType string

// The kinds of modules.
const (
	ESModule ModuleType = "esm"
	CommonJS ModuleType = "cjs"
	Text     ModuleType = "text"
	Data     ModuleType = "data"
	Wasm     ModuleType = "wasm"
	JSON     ModuleType = "json"
)

// Module is one module; its bytes lie beside the manifest.
type Module struct {
	Name   string     `json:"name"`
	Type   ModuleType `json:"type"`
	Bytes  int64      `json:"bytes"`
	SHA256 string     `json:"sha256"`
}

// DurableObject is a binding to a class of this script.
type DurableObject struct {
	Binding string `json:"binding"`
	Class   string `json:"class"`
}

// Class is a Durable Object class that the migrations declare.
type Class struct {
	Name string `json:"name"`
	Key  string `json:"key"` // names its storage; stays when the class is renamed
	SQL  bool   `json:"sql,omitempty"`
}

// Assets is how static files are served. The files themselves are in the index.
type Assets struct {
	Binding          string          `json:"binding,omitempty"`
	HTMLHandling     string          `json:"html_handling,omitempty"`
	NotFoundHandling string          `json:"not_found_handling,omitempty"`
	RunWorkerFirst   json.RawMessage `json:"run_worker_first,omitempty"` // bool or list of patterns
	Headers          string          `json:"headers,omitempty"`          // the text of _headers
	Redirects        string          `json:"redirects,omitempty"`        // the text of _redirects
	Index            string          `json:"index"`                      // SHA-256 of assets.json
	Files            int             `json:"files"`
	Bytes            int64           `json:"bytes"`
}

// Asset is one file of assets.json, which is a list sorted by path.
type Asset struct {
	Path   string `json:"path"` // relative, with slashes
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// The directories of a fetched deployment.
const (
	ModulesDir = "modules"
	AssetsDir  = "assets"
)

// LocalName is the file of a module in ModulesDir of a fetched deployment. Names
// of modules may be anything; those of their files are their digests.
func LocalName(m Module) string { return m.SHA256 }
