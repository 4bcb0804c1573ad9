package main

import (
	"testing"

	scafocaddy "github.com/scafo/scafo/caddy"
)

func TestSocketsThatAreHandedOn(t *testing.T) {
	const pid = 77
	for name, c := range map[string]struct {
		env         map[string]string
		only        bool
		http, https int
		bad         bool
	}{
		"none":                {},
		"both":                {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "https:http"}, http: 4, https: 3},
		"HTTPS alone":         {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "https"}, https: 3},
		"HTTP alone, unnamed": {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "1"}, only: true, http: 3},
		"another process's":   {env: map[string]string{"LISTEN_PID": "78", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "https:http"}},
		"unnamed":             {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "2"}, bad: true},
		"one name twice":      {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http:http"}, bad: true},
		"another name":        {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "scafo.socket"}, bad: true},
		"HTTPS without TLS":   {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http:https"}, only: true, bad: true},
		"no number":           {env: map[string]string{"LISTEN_PID": "77", "LISTEN_FDS": "many"}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := scafocaddy.Options{HTTPOnly: c.only}
			err := handedOn(&o, pid, func(key string) string { return c.env[key] })
			if (err != nil) != c.bad {
				t.Fatal(err)
			}
			if !c.bad && (o.HTTPSocket != c.http || o.HTTPSSocket != c.https) {
				t.Errorf("HTTP %d and HTTPS %d, want %d and %d", o.HTTPSocket, o.HTTPSSocket, c.http, c.https)
			}
		})
	}
}
