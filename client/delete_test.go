package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
)

func TestDeleteApplication(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		keys   []string
		fails  string
	}{
		"two keys":          {200, `{"deleted":["a","b"]}`, []string{"a", "b"}, ""},
		"none":              {200, `{"deleted":[]}`, nil, ""},
		"more than is read": {200, `{"x":{"deleted":["z"]},"deleted":["a"],"y":[1]}`, []string{"a"}, ""},
		"broken off":        {200, `{"deleted":["a","b"`, []string{"a", "b"}, "broke off"},
		"broken off before": {200, ``, nil, "broke off"},
		"broken off after":  {200, `{"deleted":["a"]`, []string{"a"}, "broke off"},
		"no list":           {200, `{"deleted":7}`, nil, "broke off"},
		"no keys":           {200, `{}`, nil, "names no keys"},
		"no strings":        {200, `{"deleted":["a",1]}`, []string{"a"}, "broke off"},
		"refused":           {409, `{"code":"not-retired","title":"t","status":409}`, nil, "not-retired"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodDelete || r.URL.Path != "/v1/applications/shop" || r.URL.Query().Get("force") != "1" {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				if c.status != 200 {
					w.Header().Set("Content-Type", "application/problem+json")
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			}))
			defer s.Close()
			cl, err := client.New(client.Config{URLs: []string{s.URL}})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			var keys []string
			err = cl.DeleteApplication(t.Context(), "shop", true, func(k string) error {
				keys = append(keys, k)
				return nil
			})
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) || !slices.Equal(keys, c.keys) {
				t.Errorf("%v %v", keys, err)
			}
			if c.status == 409 && scafo.CodeOf(err) != scafo.CodeNotRetired {
				t.Error(err)
			}
			if err := cl.DeleteApplication(t.Context(), "shop", true, nil); (err == nil) != (c.fails == "") {
				t.Errorf("without a listener: %v", err)
			}
		})
	}
}

// A deletion that a node may have seen is not sent to another one.
func TestDeleteApplicationIsSentOnce(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(503)
		fmt.Fprint(w, `{"code":"draining","status":503}`)
	}))
	defer s.Close()
	cl, err := client.New(client.Config{URLs: []string{s.URL, s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.DeleteApplication(t.Context(), "shop", false, nil); scafo.CodeOf(err) != scafo.CodeDraining || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
