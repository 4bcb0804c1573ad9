package api_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/openapitest"
)

// everything is a node with all its parts. No route is called.
func everything(t *testing.T) api.Deps {
	t.Helper()
	// Other names than those of the methods: an embedded field would hide one.
	type (
		applications = api.Applications
		operators    = api.Operators
		domains      = api.Domains
	)
	d := api.Deps{
		Applications: struct{ applications }{}, Setters: struct{ api.Setters }{}, Freezes: struct{ api.Freezes }{},
		Operators: struct{ operators }{}, Deploys: struct{ api.Deploys }{}, Loop: struct{ api.Loop }{},
		Storage: struct{ api.Storage }{}, Renderings: struct{ api.Renderings }{},
		Domains: struct{ domains }{}, Deletions: struct{ api.Deletions }{},
	}
	v := reflect.ValueOf(d)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Type.Kind() == reflect.Interface && v.Field(i).IsNil() {
			t.Errorf("Deps.%s is not among the parts: name it there, so that its routes are known", f.Name)
		}
	}
	return d
}

var parameter = regexp.MustCompile(`:(\w+)`)

// documented is a path of the route table as the document spells it.
func documented(path string) string {
	path = strings.Replace(path, "/objects/**", "/objects/{key}", 1)
	path = strings.Replace(path, "/locks/**", "/locks/{lock}", 1)
	return parameter.ReplaceAllString(path, "{$1}")
}

// The document has an operation for each route, under the tokens that the route
// takes, and none beside them.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	d, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	operations := map[string]*openapitest.Operation{}
	for _, o := range d.Operations {
		operations[o.Method+" "+o.Path] = o
	}
	takes := map[string][]string{
		"public": {}, "ingress": {"ingress"}, "node": {"node"}, "fleet": {"node", "operator"}, "operator": {"operator"},
	}
	for _, r := range api.Routes(everything(t)) {
		name := r.Method + " " + documented(r.Path)
		o := operations[name]
		if o == nil {
			t.Errorf("%s is in the route table and not in docs/reference/openapi.yaml", name)
			continue
		}
		delete(operations, name)
		if slices.Contains(openapitest.Pending, name) {
			t.Errorf("%s is served: take it from openapitest.Pending", name)
		}
		var schemes []string
		admin := false
		for _, s := range *o.Security {
			for scheme, roles := range s {
				if scheme != "workload" { // beside the others, where a trust policy admits it
					schemes = append(schemes, scheme)
				}
				admin = admin || slices.Contains(roles, "admin")
			}
		}
		if !slices.Equal(schemes, takes[r.Kind]) && len(schemes)+len(takes[r.Kind]) > 0 || admin != r.Admin {
			t.Errorf("%s takes tokens of %v, admins alone: %v; the document says %v, %v", name, takes[r.Kind], r.Admin, schemes, admin)
		}
	}
	for name := range operations {
		if !slices.Contains(openapitest.Pending, name) {
			t.Errorf("%s is in docs/reference/openapi.yaml and not in the route table", name)
		}
	}
	for _, name := range openapitest.Pending {
		if operations[name] == nil {
			t.Errorf("openapitest.Pending has %s, which is served or not described", name)
		}
	}
}

// The page has a row for each route of the table, and none beside them.
func TestReferenceHasEveryRoute(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[A-Z`, ]+`) \\| (`/[^|]*) \\| ([^|]*) \\|$").FindAllStringSubmatch(string(page), -1) {
		paths := strings.Split(strings.ReplaceAll(row[2], "`", ""), ", ")
		for i, p := range paths {
			if rest, ok := strings.CutPrefix(p, "…"); ok {
				paths[i] = paths[0][:strings.LastIndex(paths[0], "/")] + rest
			}
			for m := range strings.SplitSeq(strings.ReplaceAll(row[1], "`", ""), ", ") {
				rows[m+" "+paths[i]] = true
			}
		}
	}
	for _, r := range api.Routes(everything(t)) {
		name := r.Method + " " + r.Path
		if !rows[name] {
			t.Errorf("docs/reference/api.md has no row for %s", name)
		}
		delete(rows, name)
	}
	for name := range rows {
		if !slices.Contains(openapitest.Pending, strings.ReplaceAll(documented(name), "]", "")) {
			t.Errorf("docs/reference/api.md has a row for %s, which is no route", name)
		}
	}
}
