package main

import (
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

func TestDomainsCommands(t *testing.T) {
	f := newTestFleet(t)
	for _, name := range []string{"shop", "blog"} {
		if _, _, err := f.registry.CreateApplication(t.Context(), name, "root", nil); err != nil {
			t.Fatal(err)
		}
	}
	if out := f.must("domains", "add", "shop", "Shop.Example"); out != "shop answers on shop.example\nit answers on shop.apps.example, too\n" {
		t.Errorf("%q", out)
	}
	if out := f.must("domains", "add", "shop", "shop.example", "--wildcard"); !strings.HasPrefix(out, "shop answers on shop.example and on every host one label below it\n") {
		t.Errorf("%q", out)
	}
	f.must("domains", "add", "blog", "blog.example")
	list := f.must("domains", "list")
	for _, want := range []string{"shop.example  *.shop.example  shop", "blog.example  -               blog"} {
		if !strings.Contains(list, want) {
			t.Errorf("%q is not in\n%s", want, list)
		}
	}
	if list := f.must("domains", "list", "blog"); strings.Contains(list, "shop") || !strings.Contains(list, "blog.example") {
		t.Errorf("%s", list)
	}
	if o := compact(f.must("domains", "list", "shop", "--json")); o != `{"domains":[{"host":"shop.example","wildcard":true,"application":"shop"}]}` {
		t.Errorf("%q", o)
	}
	if o := object(t, f.must("domains", "add", "shop", "shop.example", "--json")); o["host"] != "shop.example" || o["platformHosts"] == nil || o["application"] == nil {
		t.Errorf("%v", o)
	}
	if _, err := f.scafo(f.key, "domains", "add", "blog", "x.shop.example"); scafo.CodeOf(err) != scafo.CodeReferenceHeld {
		t.Errorf("%v", err)
	}
	if _, err := f.scafo(f.key, "domains", "remove", "blog", "shop.example"); scafo.CodeOf(err) != scafo.CodeNotFound {
		t.Errorf("%v", err)
	}
	if out := f.must("domains", "remove", "shop", "shop.example"); out != "shop does not answer on shop.example any more\n" {
		t.Errorf("%q", out)
	}
	if o := compact(f.must("domains", "list", "shop", "--json")); o != `{"domains":[]}` {
		t.Errorf("%q", o)
	}
	f.wantUsage("domains", "add", "shop")
	f.wantUsage("domains", "add", "Not A Name", "shop.example")
	f.wantUsage("domains", "add", "shop", "*.shop.example")
	if _, err := f.scafo(f.key, "domains", "add", "shop", "*.shop.example"); !strings.Contains(explain(err), "scafo domains add shop shop.example --wildcard") {
		t.Errorf("%v", err)
	}
	f.wantUsage("domains", "remove", "shop", "bücher.example")
	f.wantUsage("domains", "list", "shop", "blog")
}

func compact(s string) string { return strings.Join(strings.Fields(s), "") }
