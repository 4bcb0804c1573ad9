package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func load(t *testing.T, args []string, env map[string]string, file string) (*Loaded, error) {
	t.Helper()
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	s := Sources{Flags: fs, Env: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
	if file != "" {
		s.File = filepath.Join(t.TempDir(), "scafo.yaml")
		if err := os.WriteFile(s.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(s)
}

func TestNamesOfKeys(t *testing.T) {
	want := map[string][2]string{
		"api.jsonBytes":                   {"api-json-bytes", "SCAFO_API_JSON_BYTES"},
		"bucket.pathStyle":                {"bucket-path-style", "SCAFO_BUCKET_PATH_STYLE"},
		"ingress.token":                   {"ingress-token", "SCAFO_INGRESS_TOKEN"},
		"node.labels":                     {"node-labels", "SCAFO_NODE_LABELS"},
		"ingress.traefik.wildcardDomains": {"ingress-traefik-wildcard-domains", "SCAFO_INGRESS_TRAEFIK_WILDCARD_DOMAINS"},
	}
	for _, k := range Keys() {
		if w, ok := want[k.Name]; ok {
			if k.Flag() != w[0] || k.Env() != w[1] {
				t.Errorf("%s: %s %s", k.Name, k.Flag(), k.Env())
			}
			delete(want, k.Name)
		}
	}
	if len(want) != 0 {
		t.Errorf("missing keys: %v", want)
	}
}

// The defaults are the design's.
func TestDefaults(t *testing.T) {
	l, err := load(t, []string{"--node-id", "n1"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"node.listen": "127.0.0.1:7420", "node.advertise": "http://127.0.0.1:7420", "node.address": "127.0.0.1",
		"node.internal": "127.0.0.1", "node.bind": "127.0.0.1", "api.public": "false", "api.jsonBytes": "65536",
		"deploy.artifactBytes": "104857600", "deploy.archiveEntries": "20000", "deploy.concurrency": "2", "deploy.queue": "16",
		"deploy.stagedBytes": "1073741824", "deploy.receiveSeconds": "300", "deploy.queueSeconds": "120", "deploy.taskSeconds": "300",
		"celld.command": "celld", "celld.ports": "20000-29999", "reconcile.intervalSeconds": "10", "lease.ttlSeconds": "15",
		"heartbeat.seconds": "45", "heartbeat.staleSeconds": "100", "drain.replaceSeconds": "30", "drain.routeSeconds": "8",
		"retire.graceSeconds": "604800", "oidc.allowLoopback": "false", "oidc.allowPrivate": "false", "storage.lockSeconds": "600", "metrics.listen": "", "metrics.applications": "false", "log.level": "info",
	}
	for _, s := range l.Settings() {
		if w, ok := want[s.Key]; ok && s.Value != w {
			t.Errorf("%s = %q, want %q", s.Key, s.Value, w)
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := "node:\n  id: from-file\n  labels:\n    region: file\nlease:\n  ttlSeconds: 21\nplatform:\n  domains: [Apps.Example.com]\n"
	l, err := load(t, []string{"--node-id", "from-flag"}, map[string]string{"SCAFO_NODE_ID": "from-env", "SCAFO_NODE_LABELS": "region=eu,tier=fast"}, file)
	if err != nil {
		t.Fatal(err)
	}
	if l.Node.ID != "from-flag" || l.Origins["node.id"] != OriginFlag {
		t.Errorf("node.id %q from %s", l.Node.ID, l.Origins["node.id"])
	}
	if len(l.Node.Labels) != 2 || l.Node.Labels["region"] != "eu" || l.Origins["node.labels"] != OriginEnv {
		t.Errorf("labels %v from %s", l.Node.Labels, l.Origins["node.labels"])
	}
	if l.Lease.TTLSeconds != 21 || l.Origins["lease.ttlSeconds"] != OriginFile {
		t.Errorf("ttl %d", l.Lease.TTLSeconds)
	}
	if !slices.Equal(l.Platform.Domains, []string{"apps.example.com"}) {
		t.Errorf("domains %v", l.Platform.Domains)
	}
}

func TestListsFromFlags(t *testing.T) {
	l, err := load(t, []string{"--node-id", "n", "--ingress-token", "aaaaaaaaaaaaaaaa", "--ingress-token", "bbbbbbbbbbbbbbbb", "--node-labels", "a=b=c"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Ingress.Token) != 2 || l.Node.Labels["a"] != "b=c" {
		t.Errorf("%v %v", l.Ingress.Token, l.Node.Labels)
	}
	for _, s := range l.Settings() {
		if strings.Contains(s.Value, "aaaa") {
			t.Errorf("%s shows a secret", s.Key)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, file string
		args       []string
		want       string
	}{
		{"unknown key", "node:\n  listn: x\n", nil, "did you mean node.listen?"},
		{"unknown section", "nodes:\n  id: x\n", nil, "did you mean node.id?"},
		{"section with a value", "node: x\n", nil, "node holds other keys"},
		{"list for a string", "node:\n  id: [a]\n", nil, "node.id is a string, not a list"},
		{"bad yaml", "node: [\n", nil, "configuration file"},
		{"number", "", []string{"--lease-ttl-seconds", "many"}, "whole number"},
		{"too small", "", []string{"--lease-ttl-seconds", "2"}, "at least 3"},
		{"id", "", []string{"--node-id", "Not_a_label"}, "node.id"},
		{"bucket", "", []string{"--bucket-url", "http://x"}, "s3://name"},
		{"ports", "", []string{"--celld-ports", "5"}, "celld.ports"},
		{"public internal", "", []string{"--node-internal", "8.8.8.8"}, "public address"},
		{"name without bind", "", []string{"--node-address", "box.example"}, "node.bind"},
		{"unspecified", "", []string{"--node-listen", "0.0.0.0:7420"}, "node.advertise"},
		{"short token", "", []string{"--ingress-token", "x"}, "guessable"},
		{"stale", "", []string{"--heartbeat-seconds", "100"}, "staleSeconds"},
		{"label", "", []string{"--node-labels", "region"}, "key=value"},
		{"level", "", []string{"--log-level", "loud"}, "log.level"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := c.args
			if c.file == "" && !slices.Contains(args, "--node-id") {
				args = append([]string{"--node-id", "n"}, args...)
			}
			_, err := load(t, args, nil, c.file)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v does not name %q", err, c.want)
			}
		})
	}
}

func TestBucketParse(t *testing.T) {
	for _, c := range []struct{ url, name, prefix string }{
		{"s3://b", "b", ""}, {"s3://b/", "b", ""}, {"s3://b/p", "b", "p/"}, {"s3://b/p/q/", "b", "p/q/"},
	} {
		name, prefix, err := Bucket{URL: c.url}.Parse()
		if err != nil || name != c.name || prefix != c.prefix {
			t.Errorf("%s: %q %q %v", c.url, name, prefix, err)
		}
	}
	for _, u := range []string{"", "s3://", "b", "s3:///p", "s3://b?x", "s3://b/p//q"} {
		if _, _, err := (Bucket{URL: u}).Parse(); err == nil {
			t.Errorf("%q is taken", u)
		}
	}
}
