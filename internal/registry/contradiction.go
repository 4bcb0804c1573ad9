package registry

import (
	"strings"

	"github.com/scafo/scafo"
)

// placementsToRead are the placements among what is to be read.
func (f *Follower) placementsToRead() []string {
	if !f.listed {
		return nil // everything is read then
	}
	var keys []string
	for k := range f.dirty {
		if strings.HasPrefix(k, PlacementPrefix) {
			keys = append(keys, k)
		}
	}
	return keys
}

// readContradicted reads again the applications that these placements contradict.
// Whoever changes an application may die before it is announced. A coordinator that
// lists sees the change and places by it; the others would hold the placement against
// the application that they know until they list themselves, a day later.
func (f *Follower) readContradicted(placements []string) (found bool) {
	for _, key := range placements {
		p := f.placements.docs[key]
		if !p.Exists {
			continue
		}
		if app := ApplicationKey(p.Value.Application); contradicts(p.Value, f.applications.docs[app]) {
			f.dirty[app] = struct{}{}
			found = true
		}
	}
	return found
}

// contradicts is whether a placement can only have been decided on a newer record of
// its application.
func contradicts(p scafo.Placement, app Doc[scafo.Application]) bool {
	a := app.Value
	switch {
	case !app.Exists:
		return true
	case a.UID != p.UID:
		return false // of another life: whichever is older
	}
	return p.DeploySeq > a.DeploySeq || len(p.Nodes) > 0 && (a.Deployment == "" || a.Blocked != nil)
}
