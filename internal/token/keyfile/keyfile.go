// Package keyfile keeps signing keys in files: a private JWK (RFC 8037) with its
// kid, mode 0600.
package keyfile

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/token"
)

// MaxBytes bounds a key file. An honest one has some 200 bytes.
const MaxBytes = 16 << 10

const (
	fileMode = 0o600
	dirMode  = 0o700
	// othersMode are the permissions that nobody but the owner may have.
	othersMode fs.FileMode = 0o077
)

// Key is a signing key and the id that it signs for.
type Key struct {
	ID      string // node or operator id
	Private ed25519.PrivateKey
}

// jwk is the file's content. Other members are ignored: tools add alg, use, ….
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	X   string `json:"x"`
	D   string `json:"d"`
}

var encoding = base64.RawURLEncoding.Strict()

// New makes a key for an id.
func New(id string) (Key, error) {
	if !scafo.ValidName(id) {
		return Key{}, fmt.Errorf("key id %q is not 1 to %d characters of a-z, 0-9 and inner hyphens", id, scafo.MaxNameLength)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make a key for %s: %w", id, err)
	}
	return Key{ID: id, Private: private}, nil
}

// Public is the key's public half, as the registry records it.
func (k Key) Public() scafo.PublicKey {
	public, _ := k.Private.Public().(ed25519.PublicKey)
	return token.PublicJWK(public)
}

// Token signs a fresh token: one for each request, since each is accepted once.
func (k Key) Token(now time.Time) (string, error) {
	var jti [token.IDBytes]byte
	if _, err := io.ReadFull(rand.Reader, jti[:]); err != nil {
		return "", fmt.Errorf("make a token id: %w", err)
	}
	return token.Mint(k.Private, k.ID, now, jti), nil
}

// Load reads a key file. othersCanRead reports that its mode lets somebody beside
// its owner at it, which is worth a warning.
func Load(path string) (k Key, othersCanRead bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, false, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, false, fmt.Errorf("key file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Key{}, false, fmt.Errorf("key file %s is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return Key{}, false, fmt.Errorf("key file: %w", err)
	}
	if len(b) > MaxBytes {
		return Key{}, false, fmt.Errorf("key file %s is larger than %d bytes", path, MaxBytes)
	}
	if k, err = Parse(b); err != nil {
		return Key{}, false, fmt.Errorf("key file %s: %w", path, err)
	}
	return k, info.Mode().Perm()&othersMode != 0, nil
}

// Parse reads a private JWK. No error shows any of what it read.
func Parse(b []byte) (Key, error) {
	var j jwk
	if err := json.Unmarshal(b, &j); err != nil {
		return Key{}, errors.New("no JSON Web Key")
	}
	if j.Kty != "OKP" || j.Crv != "Ed25519" {
		return Key{}, errors.New(`no Ed25519 key: kty must be "OKP" and crv "Ed25519"`)
	}
	if !scafo.ValidName(j.Kid) {
		return Key{}, fmt.Errorf("its kid is no id: 1 to %d characters of a-z, 0-9 and inner hyphens", scafo.MaxNameLength)
	}
	if j.D == "" {
		return Key{}, errors.New("it has no private part (d)")
	}
	seed, err := encoding.DecodeString(j.D)
	if err != nil || len(seed) != ed25519.SeedSize {
		return Key{}, errors.New("its private part (d) is not the unpadded base64url of 32 bytes")
	}
	k := Key{ID: j.Kid, Private: ed25519.NewKeyFromSeed(seed)}
	if k.Public().X != j.X {
		return Key{}, errors.New("its public part (x) does not belong to its private part (d)")
	}
	return k, nil
}

// Save writes a new key file, readable by its owner alone. It never replaces a
// file: a key that is lost cannot be made again. After a crash the file is there
// as a whole or not at all.
func Save(path string, k Key) error {
	public := k.Public()
	b, err := json.MarshalIndent(jwk{Kty: public.Kty, Crv: public.Crv, Kid: k.ID, X: public.X, D: encoding.EncodeToString(k.Private.Seed())}, "", "  ")
	if err != nil {
		return fmt.Errorf("key file %s: %w", path, err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	f, err := os.CreateTemp(dir, ".key-*") // created with 0600
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f, append(b, '\n')); err != nil {
		return fmt.Errorf("key file %s: %w", path, err)
	}
	// A link, unlike a rename, is refused when the name is taken.
	if err := os.Link(f.Name(), path); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return syncDir(dir)
}

// Replace puts the key file next in the place of the one at path, which is gone
// then. After a crash either is there, as a whole.
func Replace(next, path string) error {
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// publicJWK is a public key with the id that it was made for.
type publicJWK struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	X   string `json:"x"`
}

// PublicJWK is the key's public half with its id, to be handed to whoever shall
// register it.
func (k Key) PublicJWK() []byte {
	public := k.Public()
	b, _ := json.Marshal(publicJWK{Kty: public.Kty, Crv: public.Crv, Kid: k.ID, X: public.X}) // strings: it cannot fail
	return b
}

// ParsePublic reads what PublicJWK made; the id is empty where it has none. A
// private key is refused: it should not have left the machine that it was made on.
func ParsePublic(b []byte) (id string, key scafo.PublicKey, err error) {
	var j struct {
		publicJWK
		D *string `json:"d"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return "", key, errors.New("no JSON Web Key")
	}
	if j.D != nil {
		return "", key, errors.New("it is a private key: only its public half is to be handed over")
	}
	key = scafo.PublicKey{Kty: j.Kty, Crv: j.Crv, X: j.X}
	if _, err := token.ParsePublicKey(key); err != nil {
		return "", key, err
	}
	return j.Kid, key, nil
}

func write(f *os.File, b []byte) error {
	if err := f.Chmod(fileMode); err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return nil
}
