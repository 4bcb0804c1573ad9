package instance_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// asks fetches what its query names, follows redirects, and opens a socket.
const asks = `import { connect } from "cloudflare:sockets";
export default { async fetch(request) {
  const q = new URL(request.url).searchParams;
  try {
    if (q.get("socket")) {
      const s = connect(q.get("socket")); await s.opened;
      const w = s.writable.getWriter(); await w.write(new TextEncoder().encode("GET / HTTP/1.0\r\n\r\n"));
      return new Response("reached " + (await new Response(s.readable).text()).slice(0, 8));
    }
    return new Response("reached " + (await (await fetch(q.get("url"))).text()).slice(0, 6));
  } catch (e) { return new Response("refused"); }
} };`

// Whatever spells an address of this machine or of its links is refused, and stays so
// where private networks are open; a network that is open is reached but for what is
// denied in it. 127.0.0.0/8 plays that network's part.
func TestWhatAWorkerReaches(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		fmt.Fprint(w, "SECRET")
	})
	srv := httptest.NewServer(handler)
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip(err)
	}
	fleet := &http.Server{Handler: handler}
	defer fleet.Close()
	go fleet.Serve(l)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	port := u.Port()
	d := deployment(t, layout.Manifest{Main: "index.js", CompatibilityFlags: []string{"nodejs_compat"}}, map[string]string{"index.js": asks}, nil)
	outcome := func(i *instance.Instance, key, value string) string {
		t.Helper()
		_, body := get(t, "http://"+i.Addr()+"/?"+key+"="+url.QueryEscape(value))
		word, _, _ := strings.Cut(body, " ")
		return word
	}
	closed := []string{
		"http://127.0.0.1:" + port, "http://localhost:" + port, "http://[::1]:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://[::ffff:7f00:1]:" + port,
		"http://0.0.0.0:" + port, "http://2130706433:" + port, "http://0x7f.1:" + port, "http://127.1:" + port, "http://[::]:" + port,
		"http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/", "http://10.0.0.1:1/", "http://192.168.0.1:1/",
	}
	i, ctx := launch(t, instance.Spec{Deployment: d})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for _, target := range closed {
		if got := outcome(i, "url", target); got != "refused" {
			t.Errorf("%s: %s", target, got)
		}
	}
	if got := outcome(i, "socket", "127.0.0.1:"+port); got != "refused" {
		t.Errorf("a socket: %s", got)
	}

	// As where private networks are open: what is never open stays closed.
	i, ctx = launch(t, instance.Spec{Deployment: d, Network: &instance.Network{
		Allow: []string{"public", "10.0.0.0/8", "192.168.0.0/16", "fc00::/7"}, Deny: []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/128", "::1/128", "fe80::/10", "fd00:ec2::254/128"},
	}})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for _, target := range closed[:12] {
		if got := outcome(i, "url", target); got != "refused" {
			t.Errorf("with open private networks, %s: %s", target, got)
		}
	}

	i, ctx = launch(t, instance.Spec{Deployment: d, Network: &instance.Network{
		Allow: []string{"public", "127.0.0.0/8"}, Deny: []string{"127.0.0.2/32", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "64:ff9b::/96", "::ffff:0:0/96"},
	}})
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		srv.URL: "reached", "http://" + l.Addr().String(): "refused", srv.URL + "/?to=" + url.QueryEscape("http://"+l.Addr().String()): "refused",
	} {
		if got := outcome(i, "url", target); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
	for target, want := range map[string]string{"127.0.0.1:" + port: "reached", l.Addr().String(): "refused"} {
		if got := outcome(i, "socket", target); got != want {
			t.Errorf("a socket to %s: %s, want %s", target, got, want)
		}
	}
}
