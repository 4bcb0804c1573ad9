package api_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/api"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/token/tokentest"
)

// GET /v1/applications/:name against a bare handler that verifies one signature
// and answers as many bytes. The store is in memory: its time is next to none.
func BenchmarkApplication(b *testing.B) {
	r := registry.New(fault.New(memory.New()), registry.Options{})
	if _, err := r.InitFleet(b.Context(), operator("admin", scafo.RoleAdmin, "*")); err != nil {
		b.Fatal(err)
	}
	if _, _, err := r.CreateApplication(b.Context(), "shop", "admin", nil); err != nil {
		b.Fatal(err)
	}
	real, err := api.New(api.Deps{Node: "node-a", Verifier: auth.New(r, auth.Options{}), Applications: r})
	if err != nil {
		b.Fatal(err)
	}
	s := signer("admin")
	key, _ := s.Private.Public().(ed25519.PublicKey)
	body := []byte(strings.Repeat("x", 256))
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		dot := strings.LastIndexByte(t, '.')
		sig, err := base64.RawURLEncoding.DecodeString(t[dot+1:])
		if err != nil || !ed25519.Verify(key, []byte(t[:dot]), sig) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(body)
	})
	const tokens = 20_000
	made := make([]string, tokens)
	for _, c := range []struct {
		name string
		h    http.Handler
	}{{"bare", bare}, {"node", real}} {
		b.Run(c.name, func(b *testing.B) {
			now := time.Now()
			for i := range made {
				made[i] = "Bearer " + tokentest.Good(s, now, fmt.Sprint(c.name, b.N, i))
			}
			b.ResetTimer()
			for i := range b.N {
				if i >= tokens {
					b.Fatalf("more than %d rounds", tokens)
				}
				req := httptest.NewRequest(http.MethodGet, "/v1/applications/shop", nil)
				req.Header.Set("Authorization", made[i])
				w := httptest.NewRecorder()
				c.h.ServeHTTP(w, req)
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
