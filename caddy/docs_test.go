package caddy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/scafo/scafo"
)

// fenced are the blocks of a kind on a page, without their indentation.
func fenced(t *testing.T, page, kind string) []string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^( *)```"+kind+"\n(.*?)^ *```$").FindAllStringSubmatch(string(b), -1) {
		out = append(out, strings.ReplaceAll("\n"+m[2], "\n"+m[1], "\n"))
	}
	return out
}

// adapted is a Caddyfile as Caddy's configuration.
func adapted(t *testing.T, file string) *caddy.Config {
	t.Helper()
	b, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(file), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	return configOf(t, b)
}

func configOf(t *testing.T, b []byte) *caddy.Config {
	t.Helper()
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(b, &c); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return &c
}

// Caddy takes every configuration that the how-tos show.
func TestConfigurationsOfTheHowTos(t *testing.T) {
	t.Setenv("SCAFO_INGRESS_TOKEN", token)
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	pages, err := filepath.Glob("../docs/how-to/*.md")
	if err != nil {
		t.Fatal(err)
	}
	nobody := regexp.MustCompile(`http://10\.0\.0\.\d:7420`)
	here := strings.NewReplacer("/var/lib/caddy", t.TempDir(), "dns cloudflare {env.CLOUDFLARE_API_TOKEN}", "issuer acme",
		"tls /etc/scafo/origin.pem /etc/scafo/origin.key", "tls internal", "\"{file./etc/scafo/storage.key}\"", "\"a secret of the test's\"")
	local := func(text string) string {
		return here.Replace(nobody.ReplaceAllString(text, fmt.Sprintf("http://127.0.0.1:%d", freePort(t))))
	}
	checked := 0
	for _, page := range pages {
		var all []*caddy.Config
		for _, text := range fenced(t, page, "caddyfile") {
			all = append(all, adapted(t, local(text)))
		}
		for _, text := range fenced(t, page, "json") {
			if strings.Contains(text, `"apps"`) || strings.Contains(text, `"storage"`) {
				all = append(all, configOf(t, []byte(local(text))))
			}
		}
		for _, c := range all {
			checked++
			c.Admin = &caddy.AdminConfig{Disabled: true}
			c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{Level: "PANIC"}}}}
			if err := caddy.Validate(c); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if checked < 9 {
		t.Errorf("only %d configurations were found", checked)
	}
}

// A wildcard certificate of a site of its own answers for hosts that only a wildcard of
// the document covers, and for no others; nothing is ordered for them.
func TestAWildcardCertificateAnswersBelowItsBase(t *testing.T) {
	t.Setenv("SCAFO_INGRESS_TOKEN", token)
	up := []scafo.Upstream{{URL: upstream(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up") })}}
	node := whole(t, newNode(t, scafo.FleetRouting{
		Routes: []scafo.Route{{Host: "blog.apps.example.com", Upstreams: up}}, Wildcards: []scafo.WildcardRoute{{Base: "shop.example", Upstreams: up}},
	}), newFleetStore())
	files := fenced(t, "../docs/how-to/get-wildcard-certificates.md", "caddyfile")
	if len(files) != 1 {
		t.Fatalf("%d Caddyfiles", len(files))
	}
	https := freePort(t)
	written := strings.NewReplacer("http://10.0.0.1:7420 http://10.0.0.2:7420", node.URL, "/var/lib/caddy", t.TempDir(),
		"dns cloudflare {env.CLOUDFLARE_API_TOKEN}", "issuer internal").Replace(files[0])
	mine := fmt.Sprintf("{\n\tadmin off\n\tskip_install_trust\n\tdefault_bind 127.0.0.1\n\thttp_port %d\n\thttps_port %d\n\tlog {\n\t\tlevel ERROR\n\t}\n", freePort(t), https)
	c := adapted(t, strings.Replace(written, "{\n", mine, 1))
	c.Admin = &caddy.AdminConfig{Disabled: true, Config: &caddy.ConfigSettings{Persist: new(bool)}}
	if err := caddy.Run(c); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caddy.Stop() }()
	shake := func(host string) (*x509.Certificate, error) {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", https), &tls.Config{ServerName: host, InsecureSkipVerify: true}) //nolint:gosec // the authority is the test's
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0], nil
	}
	for host, name := range map[string]string{
		"anything.shop.example": "*.shop.example", "blog.apps.example.com": "*.apps.example.com", "nobody.apps.example.com": "*.apps.example.com",
	} {
		eventually(t, host+" has its certificate", func() bool {
			cert, err := shake(host)
			return err == nil && slices.Equal(cert.DNSNames, []string{name})
		})
	}
	for _, host := range []string{"a.b.shop.example", "shop.example", "stranger.example"} {
		if _, err := shake(host); err == nil {
			t.Errorf("%s has a certificate", host)
		}
	}
	for host, want := range map[string]int{"anything.shop.example": http.StatusOK, "blog.apps.example.com": http.StatusOK, "nobody.apps.example.com": http.StatusNotFound} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", https), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		client := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host}} //nolint:gosec // as above
		defer client.CloseIdleConnections()
		res, err := client.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", host, res.StatusCode, want)
		}
	}
}
