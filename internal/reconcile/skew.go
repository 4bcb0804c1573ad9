package reconcile

import (
	"maps"
	"slices"
	"strings"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/registry"
)

// A fleet may run two releases of scafo at once. Documents that a newer one wrote in a
// form that this one does not know are left alone, and so is what they are about: this
// node neither stops nor moves it.

// unreadable are the names, or ids, of the documents under a prefix that are left
// alone.
func (v *view) unreadable(prefix string) map[string]bool {
	var out map[string]bool
	for key := range v.snap.Unreadable {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSuffix(rest, ".json"), "/")
		if out == nil {
			out = map[string]bool{}
		}
		out[name] = true
	}
	return out
}

// decidable are the applications that this node may place: not those whose record or
// placement it cannot read, and not those that are placed on a node of which it
// cannot read what it is.
func (v *view) decidable() map[string]scafo.Application {
	if len(v.snap.Unreadable) == 0 {
		return v.snap.Applications
	}
	out := maps.Clone(v.snap.Applications)
	for _, prefix := range []string{registry.ApplicationPrefix, registry.PlacementPrefix} {
		for name := range v.unreadable(prefix) {
			delete(out, name)
		}
	}
	strange := v.unreadable(registry.NodePrefix)
	for id := range v.unreadable(registry.HeartbeatPrefix) {
		if strange == nil {
			strange = map[string]bool{}
		}
		strange[id] = true
	}
	for name, p := range v.placements {
		if slices.ContainsFunc(p.Nodes, func(id string) bool {
			_, known := v.machine(id)
			return strange[id] && !known
		}) {
			delete(out, name)
		}
	}
	return out
}
