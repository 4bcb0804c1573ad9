package api_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/openapitest"
	"github.com/scafo/scafo/internal/problem"
)

// jsonFields are the names under which a type's fields are encoded, and whether they
// may be left out.
func jsonFields(typ reflect.Type) map[string]bool {
	out := map[string]bool{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			maps.Copy(out, jsonFields(f.Type))
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		out[name] = strings.Contains(options, "omitempty")
	}
	return out
}

// Each schema of the document has the fields of the type that is encoded, requires
// those that are always there, and no others.
func TestOpenAPIHasEveryField(t *testing.T) {
	d, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		of any
		// less are fields that the API never shows, and more those that it shows beside.
		less, more []string
	}{
		"Application": {of: scafo.Application{}, less: []string{"write"}}, "TrustedOperator": {of: scafo.Operator{}, less: []string{"write"}},
		"Node": {of: scafo.Node{}, less: []string{"write"}}, "Lease": {of: scafo.Lease{}, less: []string{"write"}}, "Freeze": {of: scafo.Freeze{}, less: []string{"write"}},
		"Health": {of: scafo.Health{}}, "DeployStatus": {of: scafo.DeployStatus{}}, "DaemonState": {of: scafo.DaemonState{}}, "CoordinatorView": {of: scafo.CoordinatorView{}},
		"PlacementView": {of: scafo.PlacementView{}}, "ReconcileStatus": {of: scafo.ReconcileStatus{}}, "StorageStat": {of: scafo.StorageStat{}},
		"FleetRouting": {of: scafo.FleetRouting{}}, "PeerAnswer": {of: scafo.PeerAnswer{}}, "PublicKey": {of: scafo.PublicKey{}}, "Stamp": {of: scafo.Stamp{}},
		"Problem":   {of: problem.Document{}},
		"BucketUse": {of: scafo.BucketUse{}}, "BucketRequests": {of: scafo.BucketRequests{}}, "FleetNode": {of: scafo.FleetNode{}},
		"ProcessStatus": {of: scafo.ProcessStatus{}, more: []string{"internal"}},
	} {
		schema := d.T.Components.Schemas[name].Value
		fields := jsonFields(reflect.TypeOf(c.of))
		for _, f := range c.less {
			delete(fields, f)
		}
		for _, f := range c.more {
			fields[f] = true
		}
		want, have := slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(schema.Properties))
		if !slices.Equal(want, have) {
			t.Errorf("%s has the fields %v, the document %v", name, want, have)
		}
		for field, optional := range fields {
			if required := slices.Contains(schema.Required, field); required == optional {
				t.Errorf("%s.%s: always there: %v; the document requires it: %v", name, field, !optional, required)
			}
		}
	}
}
