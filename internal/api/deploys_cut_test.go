package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/problem"
)

// Half an upload is refused as what it is, is no failure of the node, and leaves nothing.
func TestHalfAnUpload(t *testing.T) {
	f := newFleet(t)
	d := api.Deps{Node: "node-a", Verifier: auth.New(f.registry, auth.Options{})}
	withDeploys(t, "node-a")(f.registry, &d)
	h, err := api.New(d)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	for name, body := range map[string]string{
		"a length":        "Content-Length: 1000\r\n\r\nabc",
		"a chunk":         "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
		"no last chunk":   "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
		"a chunk of none": "Transfer-Encoding: chunked\r\n\r\nzz\r\nab",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/applications/shop/deploys HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n%s: %s\r\n%s", bearer("admin"), scafo.DeployHeader, emptyHeader, body)
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer res.Body.Close()
		var said problem.Document
		if err := json.NewDecoder(res.Body).Decode(&said); err != nil || res.StatusCode != http.StatusBadRequest || said.Code != scafo.CodeInvalidInput {
			t.Errorf("cut within %s: %d %+v %v", name, res.StatusCode, said, err)
		}
	}
	if all, err := f.registry.Deploys(t.Context(), "shop"); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}
