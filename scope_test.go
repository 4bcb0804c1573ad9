package scafo_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

func TestParseScope(t *testing.T) {
	long := strings.Repeat("a", scafo.MaxNameLength)
	for _, good := range [][]string{
		{"*"}, {"shop"}, {"shop", "shop-*"}, {"a*"}, {"a-*"}, {"0"}, {"a--b"}, {long}, {long + "*"}, {"shop", "shop"}, {"a-b*", "a"},
	} {
		if s, err := scafo.ParseScope(good); err != nil || !slices.Equal(s, good) {
			t.Errorf("%q: %v, %v", good, s, err)
		}
	}
	for _, bad := range [][]string{
		nil, {}, {""}, {"*", "*"}, {"*", "shop"}, {"shop", "*"}, {"**"}, {"*shop"}, {"sh*op"}, {"shop-**"}, {"*-*"}, {"-*"}, {"-a*"}, {"-a"}, {"a-"},
		{"Shop"}, {"a.b"}, {"a/b"}, {"a b"}, {" a"}, {"a\n"}, {"a_b*"}, {"ä*"}, {long + "a"}, {long + "a*"}, {"shop", ""},
	} {
		if s, err := scafo.ParseScope(bad); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%q: %v, %v", bad, s, err)
		}
	}
}

func TestScopeReaches(t *testing.T) {
	for _, c := range []struct {
		scope []string
		yes   []string
		no    []string
	}{
		{[]string{"*"}, []string{"a", "shop", "shop-x"}, nil},
		{[]string{"shop"}, []string{"shop"}, []string{"shop-x", "sho", "shops", "xshop"}},
		{[]string{"shop-*"}, []string{"shop-x", "shop-x-y"}, []string{"shop", "shopx", "x-shop-x"}},
		{[]string{"shop*", "blog"}, []string{"shop", "shops", "shop-x", "blog"}, []string{"blog-x", "sho"}},
	} {
		s, err := scafo.ParseScope(c.scope)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.yes {
			if !s.Reaches(n) {
				t.Errorf("%v does not reach %s", s, n)
			}
		}
		for _, n := range c.no {
			if s.Reaches(n) {
				t.Errorf("%v reaches %s", s, n)
			}
		}
	}
}

// scopeRule is the grammar of an entry beside "*", written a second time: a name, or
// what a name can begin with and a star.
var scopeRule = regexp.MustCompile(`^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?|[a-z0-9][a-z0-9-]{0,62}\*)$`)

func FuzzParseScope(f *testing.F) {
	for _, s := range []string{"*", "shop", "shop-*", "shop,shop-*", "**", "*,a", "", ",", "a,", "-*", "a-,b", "aA", strings.Repeat("a", 64) + "*", "shop\n", "s\u212a*"} {
		f.Add(s, "shop-x")
	}
	f.Fuzz(func(t *testing.T, list, name string) {
		entries := strings.Split(list, ",")
		s, err := scafo.ParseScope(entries)
		valid := len(entries) == 1 && entries[0] == "*"
		if !valid {
			valid = !slices.ContainsFunc(entries, func(e string) bool { return !scopeRule.MatchString(e) })
		}
		if (err == nil) != valid {
			t.Fatalf("%q: %v", entries, err)
		}
		if err != nil {
			return
		}
		if !s.Covers(s) || !(scafo.Scope{"*"}).Covers(s) {
			t.Fatalf("%v does not cover itself", s)
		}
		if !scafo.ValidName(name) {
			return
		}
		reaches := slices.ContainsFunc(entries, func(e string) bool {
			return e == name || strings.HasSuffix(e, "*") && strings.HasPrefix(name, strings.TrimSuffix(e, "*"))
		})
		if s.Reaches(name) != reaches || s.Covers(scafo.Scope{name}) != reaches {
			t.Fatalf("%v and %s", s, name)
		}
	})
}
