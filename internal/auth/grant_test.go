package auth_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
)

// Names over a small alphabet, so that scopes often meet.
func genName() *rapid.Generator[string] {
	return rapid.StringMatching(`[ab](-?[ab]){0,4}`)
}

func genScope() *rapid.Generator[scafo.Scope] {
	entry := rapid.OneOf(genName(), rapid.StringMatching(`[ab](-?[ab]){0,3}-?\*`))
	return rapid.Custom(func(t *rapid.T) scafo.Scope {
		entries := []string{"*"}
		if rapid.IntRange(0, 5).Draw(t, "wild") > 0 {
			entries = rapid.SliceOfN(entry, 1, 4).Draw(t, "entries")
		}
		s, err := scafo.ParseScope(entries)
		if err != nil {
			t.Fatalf("%v: %v", entries, err)
		}
		return s
	})
}

func genCaller() *rapid.Generator[auth.Principal] {
	return rapid.Custom(func(t *rapid.T) auth.Principal {
		return auth.Principal{
			Kind: auth.KindOperator, ID: "caller", Scope: genScope().Draw(t, "scope"),
			Role:       rapid.SampledFrom([]scafo.Role{scafo.RoleAdmin, scafo.RoleOperator}).Draw(t, "role"),
			Supersedes: rapid.SampledFrom([]string{"", "former"}).Draw(t, "supersedes"),
		}
	})
}

func genGrant() *rapid.Generator[auth.Grant] {
	return rapid.Custom(func(t *rapid.T) auth.Grant {
		g := auth.Grant{
			ID:   rapid.SampledFrom([]string{"caller", "fresh", "former"}).Draw(t, "id"),
			Role: rapid.SampledFrom([]scafo.Role{"", scafo.RoleAdmin, scafo.RoleOperator}).Draw(t, "role"),
		}
		if rapid.Bool().Draw(t, "replaces") {
			s := rapid.SampledFrom([]string{"caller", "caller", "caller", "former", "other", ""}).Draw(t, "of")
			g.Supersedes = &s
		}
		if rapid.Bool().Draw(t, "scoped") {
			g.Applications = genScope().Draw(t, "applications")
		}
		return g
	})
}

// A grant is never wider than its grantor: in no name that it reaches, in no tier,
// and in no key that it may revoke.
func TestGrantsAreNeverWider(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, g := genCaller().Draw(t, "caller"), genGrant().Draw(t, "grant")
		op, err := p.Grant(g)
		if err != nil {
			if c := scafo.CodeOf(err); c != scafo.CodeAuthScope && c != scafo.CodeInvalidInput {
				t.Fatalf("%v", err)
			}
			return
		}
		if op.CreatedBy != p.ID || op.ID != g.ID {
			t.Fatalf("%+v", op)
		}
		if op.Role == scafo.RoleAdmin && p.Role != scafo.RoleAdmin {
			t.Fatalf("an operator made an admin: %+v", op)
		}
		for _, name := range rapid.SliceOfN(genName(), 20, 20).Draw(t, "names") {
			if op.Applications.Reaches(name) && !p.Scope.Reaches(name) {
				t.Fatalf("%v reaches %s, its grantor's %v does not", op.Applications, name, p.Scope)
			}
		}
		if op.Applications.All() && !p.Scope.All() {
			t.Fatalf("everything, by %v", p.Scope)
		}
		if g.Supersedes != nil && *g.Supersedes != p.ID {
			t.Fatalf("%s superseded %s", p.ID, *g.Supersedes)
		}
		if op.Supersedes != "" && (op.Supersedes != p.ID || op.ID == p.ID) {
			t.Fatalf("%+v may revoke %s", op, op.Supersedes)
		}
		if op.Supersedes == "" && op.Applications.All() && p.Role != scafo.RoleAdmin {
			t.Fatalf("an operator gave everything to a key beside itself: %+v", op)
		}
		if op.Supersedes == "" && g.Applications == nil {
			t.Fatalf("a fresh key inherited its scope: %+v", op)
		}
		if _, err := scafo.ParseScope(op.Applications); err != nil {
			t.Fatal(err)
		}
	})
}

// A chain of grants never comes back to what a key in it did not have.
func TestChainsOfGrants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := genCaller().Draw(t, "caller")
		p := first
		for range rapid.IntRange(1, 6).Draw(t, "length") {
			g := genGrant().Draw(t, "grant")
			if g.Supersedes != nil {
				s := p.ID
				g.Supersedes = &s
			}
			op, err := p.Grant(g)
			if err != nil {
				continue
			}
			p = auth.Principal{Kind: auth.KindOperator, ID: op.ID, Role: op.Role, Scope: op.Applications, Supersedes: op.Supersedes}
		}
		for _, name := range rapid.SliceOfN(genName(), 20, 20).Draw(t, "names") {
			if p.Reaches(name) && !first.Reaches(name) {
				t.Fatalf("%v came from %v", p.Scope, first.Scope)
			}
		}
		if p.Admin() && !first.Admin() {
			t.Fatal("an admin came from an operator")
		}
	})
}

// Covers against the definition: it may say no where yes would do, since it never
// depends on which names there are, and never the other way.
func TestCoversIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genScope().Draw(t, "a"), genScope().Draw(t, "b")
		if !a.Covers(a) {
			t.Fatalf("%v does not cover itself", a)
		}
		if a.Covers(b) {
			for _, e := range b {
				name := strings.TrimSuffix(e, "*")
				if name == "" || strings.HasSuffix(name, "-") {
					name += "a"
				}
				if !a.Reaches(name) {
					t.Fatalf("%v covers %v and does not reach %s", a, b, name)
				}
			}
		}
		// Exact names are covered exactly where they are reached.
		for _, e := range b {
			if !strings.HasSuffix(e, "*") && a.Covers(scafo.Scope{e}) != a.Reaches(e) {
				t.Fatalf("%v and %s", a, e)
			}
		}
	})
}

func TestMayRevokeAndMayList(t *testing.T) {
	admin := auth.Principal{Kind: auth.KindOperator, ID: "a", Role: scafo.RoleAdmin, Scope: scafo.Scope{"shop"}}
	fresh := auth.Principal{Kind: auth.KindOperator, ID: "f", Role: scafo.RoleOperator, Scope: scafo.Scope{"*"}}
	heir := auth.Principal{Kind: auth.KindOperator, ID: "h", Role: scafo.RoleOperator, Scope: scafo.Scope{"*"}, Supersedes: "f"}
	for _, c := range []struct {
		p    auth.Principal
		id   string
		want scafo.Code
	}{
		{admin, "a", scafo.CodeInvalidInput}, {fresh, "f", scafo.CodeInvalidInput}, {heir, "h", scafo.CodeInvalidInput},
		{admin, "f", ""}, {admin, "nobody", ""}, {admin, "", ""},
		{heir, "f", ""}, {heir, "a", scafo.CodeAuthScope}, {heir, "", scafo.CodeAuthScope},
		{fresh, "h", scafo.CodeAuthScope}, {fresh, "", scafo.CodeAuthScope}, {fresh, "nobody", scafo.CodeAuthScope},
	} {
		if got := scafo.CodeOf(c.p.MayRevoke(c.id)); got != c.want {
			t.Errorf("%s revokes %q: %q, want %q", c.p.ID, c.id, got, c.want)
		}
	}
	all := []scafo.Operator{{ID: "a"}, {ID: "f"}, {ID: "h", Supersedes: "f"}, {ID: "i", Supersedes: "h"}, {ID: "j", Supersedes: "i"}}
	for _, c := range []struct {
		p    auth.Principal
		want []string
	}{
		{admin, []string{"a", "f", "h", "i", "j"}}, {fresh, []string{"f", "h"}}, {heir, []string{"f", "h", "i"}},
	} {
		var got []string
		for _, op := range all {
			if c.p.MayList(op) {
				got = append(got, op.ID)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s sees %v, want %v", c.p.ID, got, c.want)
		}
	}
}
