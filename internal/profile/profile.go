// Package profile keeps what the command line knows of fleets: the addresses of
// nodes and the path of the key to sign with, so that a command needs no flags.
package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/scafo/scafo"
)

// Profile is the file, one for each user.
type Profile struct {
	V int `json:"v"`
	// Current is the fleet that commands mean unless told otherwise.
	Current string           `json:"current,omitempty"`
	Fleets  map[string]Fleet `json:"fleets"`

	path string
}

// Fleet is one fleet that the user works with.
type Fleet struct {
	ID    string   `json:"id,omitempty"`
	Nodes []string `json:"nodes"` // base URLs of nodes' APIs
	Key   string   `json:"key"`   // path of the operator's key file
	// Workers is where applications answer, with <name> for the application's: what
	// `scafo up` serves on this machine. Empty where the platform's domains say it.
	Workers string `json:"workers,omitempty"`
	// State is the state directory of the node on this machine, where there is one.
	State string `json:"state,omitempty"`
}

// Path is where the profile lies: SCAFO_PROFILE, else profile.json in the user's
// configuration directory.
func Path() (string, error) {
	if p := os.Getenv("SCAFO_PROFILE"); p != "" {
		return filepath.Abs(p)
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("no place for the profile: %w", err)
	}
	return filepath.Join(dir, "scafo", "profile.json"), nil
}

// Load reads the user's profile; one that does not exist yet is empty.
func Load() (*Profile, error) {
	path, err := Path()
	if err != nil {
		return nil, err
	}
	p := &Profile{V: scafo.FormatVersion, Fleets: map[string]Fleet{}, path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the profile: %w", err)
	}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("the profile %s is damaged: %w", path, err)
	}
	if p.V > scafo.FormatVersion {
		return nil, fmt.Errorf("the profile %s was written by a newer scafo", path)
	}
	if p.Fleets == nil {
		p.Fleets = map[string]Fleet{}
	}
	return p, nil
}

// Select finds a fleet by name, or the current one for the empty name.
func (p *Profile) Select(name string) (string, Fleet, error) {
	if name == "" {
		name = p.Current
	}
	if name == "" && len(p.Fleets) == 1 {
		for only := range p.Fleets {
			name = only
		}
	}
	if name == "" {
		return "", Fleet{}, fmt.Errorf("no fleet is known here: run `scafo up` or `scafo init`, or give --node and --key-file")
	}
	f, ok := p.Fleets[name]
	if !ok {
		return "", Fleet{}, fmt.Errorf("the profile %s has no fleet %q", p.path, name)
	}
	return name, f, nil
}

// Set adds a fleet, or replaces it, and makes it the current one.
func (p *Profile) Set(name string, f Fleet) {
	f.Nodes = slices.Clone(f.Nodes)
	p.Fleets[name] = f
	p.Current = name
}

// Save writes the profile, whole or not at all.
func (p *Profile) Save() error {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(p.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the profile: %w", err)
	}
	f, err := os.CreateTemp(dir, ".profile-*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("the profile: %w", err)
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	if _, err = f.Write(append(b, '\n')); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), p.path)
	}
	if err != nil {
		return fmt.Errorf("the profile: %w", err)
	}
	return nil
}
