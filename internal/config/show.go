package config

import "strings"

// Setting is one effective value, with where it came from.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin Origin `json:"origin"`
}

// masked stands for a secret that is set.
const masked = "********"

// Settings lists every effective value in order, with the secrets masked.
func (l *Loaded) Settings() []Setting {
	var out []Setting
	for _, k := range Keys() {
		values := k.values(&l.Config)
		if k.Secret {
			for i, v := range values {
				if name, _, ok := strings.Cut(v, "="); ok && k.Type() == "map" {
					values[i] = name + "=" + masked
				} else {
					values[i] = masked
				}
			}
		}
		out = append(out, Setting{Key: k.Name, Value: strings.Join(values, ","), Origin: l.Origins[k.Name]})
	}
	return out
}
