package node

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path/filepath"
)

const ingressTokenBytes = 32

// IngressTokens are the tokens that admit an ingress: the configured ones, or one
// that is minted at the first start and kept. The first of them lies in the state
// directory's ingress-token file.
func IngressTokens(dir string, configured []string) ([]string, error) {
	path := filepath.Join(dir, ingressFile)
	if len(configured) > 0 {
		if err := replaceFile(path, configured[0]+"\n"); err != nil {
			return nil, fmt.Errorf("the ingress token: %w", err)
		}
		return configured, nil
	}
	b := make([]byte, ingressTokenBytes)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	t, err := keep(path, base64.RawURLEncoding.EncodeToString(b))
	if err != nil {
		return nil, fmt.Errorf("the ingress token: %w", err)
	}
	return []string{t}, nil
}

// IngressTokenFile is where the first ingress token lies.
func IngressTokenFile(dir string) string { return filepath.Join(dir, ingressFile) }
