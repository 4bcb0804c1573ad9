package project

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

// boundClass is a binding as it is written.
type boundClass struct {
	layout.DurableObject
	at *wrangler.Value
}

func readBindings(v *wrangler.Value, scripts *servicesAt) ([]boundClass, error) {
	var out []boundClass
	err := v.Object("durable_objects", map[string]func(*wrangler.Value) error{
		"bindings": func(v *wrangler.Value) error {
			return v.Each("durable_objects.bindings", func(item *wrangler.Value) error {
				b := boundClass{at: item}
				err := item.Object("a binding of durable_objects", map[string]func(*wrangler.Value) error{
					"name":        wrangler.Into("a binding's name", &b.Binding),
					"class_name":  wrangler.Into("a binding's class_name", &b.Class),
					"script_name": scripts.own("the script_name of a class"),
					"environment": func(v *wrangler.Value) error { return v.Errorf("environment: %s", anotherWorker) },
				})
				if err == nil && (b.Binding == "" || b.Class == "") {
					err = item.Errorf("a binding of durable_objects needs name and class_name")
				}
				out = append(out, b)
				return err
			})
		},
	})
	return out, err
}

// migration is one item of `migrations`.
type migration struct {
	at      *wrangler.Value
	tag     string
	fresh   []newClass
	renamed [][2]string
	deleted []string
}

type newClass struct {
	name string
	sql  bool
}

var className = regexp.MustCompile(`^[\p{L}_$][\p{L}\p{N}_$]*$`)

func readMigrations(v *wrangler.Value) ([]migration, error) {
	var out []migration
	names := func(what string, add func(string)) func(*wrangler.Value) error {
		return func(v *wrangler.Value) error {
			return v.Each(what, func(item *wrangler.Value) error {
				s, err := item.Text("an item of " + what)
				if err != nil {
					return err
				}
				if !className.MatchString(s) {
					return item.Errorf("%s: %q is no name of a class", what, s)
				}
				add(s)
				return nil
			})
		}
	}
	err := v.Each("migrations", func(item *wrangler.Value) error {
		m := migration{at: item}
		err := item.Object("a migration", map[string]func(*wrangler.Value) error{
			"tag":                wrangler.Into("a migration's tag", &m.tag),
			"new_sqlite_classes": names("new_sqlite_classes", func(s string) { m.fresh = append(m.fresh, newClass{s, true}) }),
			"new_classes":        names("new_classes", func(s string) { m.fresh = append(m.fresh, newClass{s, false}) }),
			"deleted_classes":    names("deleted_classes", func(s string) { m.deleted = append(m.deleted, s) }),
			"renamed_classes":    func(v *wrangler.Value) error { return readRenames(v, &m) },
			"transferred_classes": func(v *wrangler.Value) error {
				return v.Errorf("transferred_classes: objects cannot be taken over from another Worker")
			},
		})
		if err == nil && m.tag == "" {
			err = item.Errorf("a migration needs a tag")
		}
		if err == nil && slices.ContainsFunc(out, func(o migration) bool { return o.tag == m.tag }) {
			err = item.Errorf("the migration tag %q stands twice", m.tag)
		}
		out = append(out, m)
		return err
	})
	return out, err
}

func readRenames(v *wrangler.Value, m *migration) error {
	return v.Each("renamed_classes", func(item *wrangler.Value) error {
		var from, to string
		err := item.Object("an item of renamed_classes", map[string]func(*wrangler.Value) error{
			"from": wrangler.Into("from", &from), "to": wrangler.Into("to", &to),
		})
		if err == nil && (!className.MatchString(from) || !className.MatchString(to)) {
			err = item.Errorf("an item of renamed_classes needs the names of two classes, from and to")
		}
		m.renamed = append(m.renamed, [2]string{from, to})
		return err
	})
}

// keyPrefix keeps the classes' storage apart from that of the services inside
// the runtime, whose keys are fixed.
const keyPrefix = "do-"

// classes plays the migrations in order. A class keeps the storage key that it
// got when it was new; one that is made anew after its deletion gets a fresh key,
// and so begins empty.
func classes(ms []migration) ([]layout.Class, error) {
	var out []layout.Class
	births := map[string]int{} // how often a name was new
	find := func(name string) int {
		return slices.IndexFunc(out, func(c layout.Class) bool { return c.Name == name })
	}
	for _, m := range ms {
		for _, d := range m.deleted {
			i := find(d)
			if i < 0 {
				return nil, m.at.Errorf("migration %q deletes the class %s, which no migration before it made", m.tag, d)
			}
			out = slices.Delete(out, i, i+1)
		}
		for _, r := range m.renamed {
			i := find(r[0])
			switch {
			case i < 0:
				return nil, m.at.Errorf("migration %q renames the class %s, which no migration before it made", m.tag, r[0])
			case find(r[1]) >= 0:
				return nil, m.at.Errorf("migration %q renames %s to %s, which is a class already", m.tag, r[0], r[1])
			}
			out[i].Name = r[1]
		}
		for _, n := range m.fresh {
			if find(n.name) >= 0 {
				return nil, m.at.Errorf("migration %q makes the class %s, which is there already", m.tag, n.name)
			}
			births[n.name]++
			key := keyPrefix + n.name
			if births[n.name] > 1 {
				key = fmt.Sprintf("%s-%d", key, births[n.name])
			}
			out = append(out, layout.Class{Name: n.name, Key: key, SQL: n.sql})
		}
	}
	return out, nil
}

// bind checks that each binding's class is one that the migrations made.
func (c *Config) bind(bs []boundClass) error {
	for _, b := range bs {
		if !slices.ContainsFunc(c.Classes, func(k layout.Class) bool { return k.Name == b.Class }) {
			return b.at.Errorf("the binding %q names the class %q, which no migration makes: add {\"tag\": \"v1\", \"new_sqlite_classes\": [%q]} to migrations",
				b.Binding, b.Class, b.Class)
		}
		c.DurableObjects = append(c.DurableObjects, b.DurableObject)
	}
	return nil
}
