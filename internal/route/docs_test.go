package route

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

// The page on the ingress protocol shows each field of the document.
func TestReferenceHasEveryField(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/ingress-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	example, _, _ := strings.Cut(string(page), "- `routes` are")
	fields := 0
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.PkgPath() == "time" {
			return
		}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			fields++
			if !strings.Contains(example, `"`+name+`":`) {
				t.Errorf("docs/reference/ingress-protocol.md does not show %s of %s", name, typ.Name())
			}
			walk(typ.Field(i).Type)
		}
	}
	walk(reflect.TypeFor[scafo.FleetRouting]())
	if fields < 15 {
		t.Errorf("%d fields", fields)
	}
}
