package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/config.md anew")

const reference = "../../docs/reference/config.md"

// comments reads the comment of each field of each section from the source.
func comments(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			ts, ok := s.(*ast.TypeSpec)
			if !ok {
				continue
			}
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range st.Fields.List {
				out[ts.Name.Name+"."+field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
			}
		}
	}
	return out
}

func render(t *testing.T) string {
	docs := comments(t)
	var b strings.Builder
	b.WriteString(`# Configuration

A value is taken from a flag, then from an environment variable, then from the
YAML file that ` + "`--config` or `SCAFO_CONFIG`" + ` names, then from the default. A list
is a repeated flag and a comma-separated variable; a map is the same with
` + "`key=value`" + ` items. A key of the file that nobody knows is an error. ` + "`scafo config`" + `
prints what is in effect and where each value came from.

This page is made from the comments in ` + "`internal/config/config.go`" + `.

| key | flag | variable | default | |
| --- | --- | --- | --- | --- |
`)
	for _, k := range Keys() {
		typ := reflect.TypeFor[Config]()
		for _, i := range k.field[:len(k.field)-1] {
			typ = typ.Field(i).Type
		}
		doc := docs[typ.Name()+"."+typ.Field(k.field[len(k.field)-1]).Name]
		if doc == "" {
			t.Errorf("%s has no comment", k.Name)
		}
		def := k.Default
		if def == "" && k.Type() == "boolean" {
			def = "false"
		}
		if def != "" {
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | %s | %s |\n", k.Name, k.Flag(), k.Env(), def, strings.ReplaceAll(doc, "|", "\\|"))
	}
	return b.String()
}

// The reference says what the code says. Run with -update to write it anew.
func TestReferenceIsCurrent(t *testing.T) {
	want := render(t)
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the comments say: go test ./internal/config -run Reference -update", reference)
	}
}
