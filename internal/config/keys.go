package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// Key is one setting: where it lies in the struct, and its names.
type Key struct {
	Name    string // a.bC
	Default string
	Secret  bool
	min     *int64
	field   []int
	typ     reflect.Type
}

// Flag is the command-line flag of the key, without its dashes.
func (k Key) Flag() string {
	var b strings.Builder
	for _, r := range k.Name {
		switch {
		case r == '.':
			b.WriteByte('-')
		case unicode.IsUpper(r):
			b.WriteByte('-')
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Env is the environment variable of the key.
func (k Key) Env() string {
	return "SCAFO_" + strings.ToUpper(strings.ReplaceAll(k.Flag(), "-", "_"))
}

// Type says what the key takes: string, number, boolean, list or map.
func (k Key) Type() string {
	switch k.typ.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "number"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "map"
	default:
		return "string"
	}
}

// Keys lists every key in the order of the struct.
func Keys() []Key {
	return walk(reflect.TypeFor[Config](), "", nil)
}

func walk(t reflect.Type, prefix string, at []int) []Key {
	var out []Key
	for i := range t.NumField() {
		f := t.Field(i)
		name := prefix + f.Tag.Get("key")
		index := append(append([]int(nil), at...), i)
		if f.Type.Kind() == reflect.Struct {
			out = append(out, walk(f.Type, name+".", index)...)
			continue
		}
		k := Key{Name: name, Default: f.Tag.Get("default"), Secret: f.Tag.Get("secret") == "true", field: index, typ: f.Type}
		if m := f.Tag.Get("min"); m != "" {
			n, err := strconv.ParseInt(m, 10, 64)
			if err != nil {
				panic("config: " + name + " has a bad min tag")
			}
			k.min = &n
		}
		out = append(out, k)
	}
	return out
}

// set parses the textual values of one source into the field.
func (k Key) set(c *Config, values []string) error {
	v := reflect.ValueOf(c).Elem().FieldByIndex(k.field)
	one := func() (string, error) {
		if len(values) != 1 {
			return "", fmt.Errorf("%s takes one value", k.Name)
		}
		return values[0], nil
	}
	switch v.Kind() {
	case reflect.Slice:
		list := []string{}
		for _, s := range values {
			if s = strings.TrimSpace(s); s != "" {
				list = append(list, s)
			}
		}
		v.Set(reflect.ValueOf(list))
	case reflect.Map:
		m := map[string]string{}
		for _, s := range values {
			if strings.TrimSpace(s) == "" {
				continue
			}
			name, value, ok := strings.Cut(s, "=")
			if name = strings.TrimSpace(name); !ok || name == "" {
				return fmt.Errorf("%s takes items of the form key=value", k.Name)
			}
			m[name] = value
		}
		v.Set(reflect.ValueOf(m))
	case reflect.Bool:
		s, err := one()
		if err != nil {
			return err
		}
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%s is true or false, not %q", k.Name, s)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		s, err := one()
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%s is a whole number, not %q", k.Name, s)
		}
		if k.min != nil && n < *k.min {
			return fmt.Errorf("%s is at least %d", k.Name, *k.min)
		}
		v.SetInt(n)
	default:
		s, err := one()
		if err != nil {
			return err
		}
		v.SetString(s)
	}
	return nil
}

// values is the field as text, one item a line of a list or map.
func (k Key) values(c *Config) []string {
	v := reflect.ValueOf(c).Elem().FieldByIndex(k.field)
	switch v.Kind() {
	case reflect.Slice:
		out := make([]string, 0, v.Len())
		for i := range v.Len() {
			out = append(out, v.Index(i).String())
		}
		return out
	case reflect.Map:
		return sortedItems(v.Interface().(map[string]string))
	default:
		return []string{fmt.Sprint(v.Interface())}
	}
}
