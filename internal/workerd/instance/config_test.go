package instance

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// TestConfigurationOfACluster: the text as the runtime's schema has it.
func TestConfigurationOfACluster(t *testing.T) {
	text := layout.Digest([]byte("x"))
	s := &Spec{
		Deployment: &layout.Deployment{Dir: "/d", Manifest: &layout.Manifest{
			Main: "index.js", CompatibilityDate: "2026-11-01", CompatibilityFlags: []string{"nodejs_compat"},
			// The main module comes first, wherever it stands.
			Modules:        []layout.Module{{Name: "t.txt", Type: layout.Text, SHA256: text}, {Name: "index.js", Type: layout.ESModule, SHA256: text}},
			Vars:           map[string]json.RawMessage{"B": json.RawMessage(`{"c": 1}`), "A": json.RawMessage(`"a\"b"`)},
			DurableObjects: []layout.DurableObject{{Binding: "COUNTER", Class: "Counter"}},
			Classes:        []layout.Class{{Name: "Counter", Key: "do-Counter", SQL: true}},
			Assets:         &layout.Assets{Binding: "FILES", NotFoundHandling: "404-page", RunWorkerFirst: json.RawMessage(`["/api/*"]`)},
		}},
		Disk: "/disk", ForwardedProto: true,
		Cluster: &Cluster{
			Bucket: "s3://b/p", Endpoint: "http://127.0.0.1:1", Region: "r", Credentials: Credentials{SecretKey: "not here"},
			Listen: "10.0.0.1:0", Advertise: "node:0", Key: "the key", StopTimeout: 7 * time.Second, TimeDivisor: 3, UnsafePublicAddress: true,
		},
	}
	got, err := config(s, "/run/credentials")
	if err != nil {
		t.Fatal(err)
	}
	want := `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (services = [(name = "worker", worker = (modules = [(name = "index.js", esModule = embed "/modules/SHA"),
  (name = "t.txt", text = embed "/modules/SHA")], compatibilityDate = "2026-11-01", compatibilityFlags = ["nodejs_compat"], bindings = [(name = "A", text = "a\"b"),
  (name = "B", json = "{\"c\": 1}"),
  (name = "COUNTER", durableObjectNamespace = "Counter"),
  (name = "FILES", service = (name = "assets", entrypoint = "AssetWorker"))], durableObjectNamespaces = [(className = "Counter", uniqueKey = "do-Counter", enableSql = true)], durableObjectStorage = (localDisk = "disk"))),
  (name = "assets", assets = (path = "/d/assets", config = "{\"not_found_handling\":\"404-page\",\"run_worker_first\":[\"/api/*\"]}", userWorker = "worker")),
  (name = "disk", disk = (path = "/disk", writable = true))], sockets = [(name = "http", address = "127.0.0.1:0", http = (forwardedProtoHeader = "X-Forwarded-Proto"), service = "assets")], logging = (structuredLogging = true), cluster = (bucket = "s3://b/p", bucketOptions = ["aws_credentials_file=/run/credentials",
  "aws_endpoint=http://127.0.0.1:1",
  "aws_region=r"], address = "10.0.0.1:0", key = "the key", stopTimeoutMs = 7000, advertise = "node:0", unsafePublicAddress = true, unsafeTimeDivisor = 3));
`
	if want = strings.ReplaceAll(want, "SHA", text); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestTrialHasNoCluster: nor any network, whatever the specification says.
func TestTrialHasNoCluster(t *testing.T) {
	s := &Spec{
		Trial: true, Disk: "/run/disk", Cluster: &Cluster{Bucket: "s3://b", Key: "k"},
		Deployment: &layout.Deployment{Manifest: &layout.Manifest{
			Main: "m", Modules: []layout.Module{{Name: "m", Type: layout.ESModule}}, Classes: []layout.Class{{Name: "C", Key: "k"}},
		}},
	}
	got, err := config(s, "x")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "cluster") || !strings.Contains(string(got), `(name = "internet", network = (allow = []))`) {
		t.Errorf("got %s", got)
	}
}

func TestConfigurationThatCannotBe(t *testing.T) {
	for name, m := range map[string]layout.Manifest{
		"nothing to serve": {},
		"no main module":   {Main: "a", Modules: []layout.Module{{Name: "b", Type: layout.ESModule}}},
		"unknown type":     {Main: "a", Modules: []layout.Module{{Name: "a", Type: "python"}}},
	} {
		if got, err := config(&Spec{Deployment: &layout.Deployment{Manifest: &m}}, ""); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
}

const digits = "0123456789abcdef"

// unquote reads a literal as the runtime's parser does.
func unquote(s string) string {
	var b strings.Builder
	for i := 1; i < len(s)-1; i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		switch i++; s[i] {
		case 'n':
			b.WriteByte('\n')
		case 'x':
			b.WriteByte(byte(strings.IndexByte(digits, s[i+1])<<4 | strings.IndexByte(digits, s[i+2])))
			i += 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func TestLiterals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		lit := string(text(s))
		if got := unquote(lit); got != s {
			t.Fatalf("%q became %s, which reads as %q", s, lit, got)
		}
		// Nothing inside may end it.
		for i := 1; i < len(lit)-1; i++ {
			if lit[i] == '\\' {
				i++
			} else if lit[i] == '"' || lit[i] < 0x20 {
				t.Fatalf("%q became %s", s, lit)
			}
		}
	})
}

func TestLongLinesAreCut(t *testing.T) {
	var got []int
	lines(strings.NewReader(strings.Repeat("a", maxLine+10)+"\nb\r\n\nlast"), func(b []byte) { got = append(got, len(b)) })
	if len(got) != 4 || got[0] != maxLine || got[1] != 1 || got[2] != 0 || got[3] != 4 {
		t.Errorf("lines of %v", got)
	}
}

func TestTheTailIsBounded(t *testing.T) {
	var tl tail
	for i := range maxTail + 1 {
		tl.add(Line{Text: string(rune('a' + i%26))}, record{})
	}
	if n := len(strings.Split(tl.String(), "\n")); n != maxTail {
		t.Errorf("%d lines are kept, want %d", n, maxTail)
	}
}
