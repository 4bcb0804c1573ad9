package conformance_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scafo/scafo/conformance"
)

type list []string

func (l *list) String() string { return strings.Join(*l, ",") }
func (l *list) Set(s string) error {
	*l = append(*l, strings.Split(s, ",")...)
	return nil
}

var (
	nodes, without list
	keyFile        = flag.String("key", "", "file of an admin's private key, a JWK")
	tokenFile      = flag.String("ingress-token-file", "", "file with the ingress token (else SCAFO_INGRESS_TOKEN)")
	jsonBytes      = flag.Int("json-bytes", 65_536, "the nodes' api.jsonBytes")
)

func init() {
	flag.Var(&nodes, "node", "base URL of a node, repeatable: each request goes to one of them")
	flag.Var(&without, "without", "a section not to measure, repeatable: "+strings.Join(conformance.Sections(), ", "))
}

func readKey(path string) (id string, key ed25519.PrivateKey, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	var jwk struct{ Kid, D string }
	if err := json.Unmarshal(b, &jwk); err != nil {
		return "", nil, err
	}
	seed, err := base64.RawURLEncoding.DecodeString(jwk.D)
	if err != nil || len(seed) != ed25519.SeedSize || jwk.Kid == "" {
		return "", nil, errors.Join(fmt.Errorf("%s is no private Ed25519 key with a kid", path), err)
	}
	return jwk.Kid, ed25519.NewKeyFromSeed(seed), nil
}

func TestConformance(t *testing.T) {
	if len(nodes) == 0 && *keyFile == "" {
		t.Skip("nothing to measure: go test ./conformance -node URL -key FILE -ingress-token-file FILE; the tests of the whole system measure scafo itself")
	}
	target := conformance.Target{Nodes: nodes, Without: without, JSONBytes: *jsonBytes, IngressToken: os.Getenv("SCAFO_INGRESS_TOKEN")}
	var err error
	if target.KeyID, target.Key, err = readKey(*keyFile); err != nil {
		t.Fatal(err)
	}
	if *tokenFile != "" {
		b, err := os.ReadFile(*tokenFile)
		if err != nil {
			t.Fatal(err)
		}
		target.IngressToken = strings.TrimSpace(string(b))
	}
	conformance.Run(t, target)
}
