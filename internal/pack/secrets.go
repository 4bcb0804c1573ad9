package pack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// maxKeyFile is how much of a file is looked at to tell whether it is a key.
const maxKeyFile = 64 << 10

// What never leaves the machine, by name.
var (
	secretNames = []string{".npmrc", ".netrc", ".pypirc", ".git-credentials", ".htpasswd", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"}
	// secretDirs are directories of which nothing leaves.
	secretDirs = []string{".git", ".hg", ".svn", ".wrangler", ".ssh", ".aws", ".gnupg"}
	// keyStores are files of keys whatever is in them.
	keyStores = []string{".p12", ".pfx", ".jks", ".keystore", ".ppk", ".kdbx"}
	// keyFiles may hold a private key or a public one.
	keyFiles = []string{".pem", ".key", ".p8", ".pk8", ".jwk", ".jwks", ".json"}
)

// SecretError is a file that the Worker needs and that must not leave the machine.
type SecretError struct{ File, Why string }

func (e *SecretError) Error() string {
	return fmt.Sprintf("%s %s and is not sent: what is deployed lies in the fleet's bucket. Give what the Worker needs of it with --var, or name the file otherwise if it is none", e.File, e.Why)
}

// secret says why a file must not leave the machine, or nothing. shown is its path
// relative to the project, with slashes; name is where it is.
func secret(shown, name string) string {
	for part := range strings.SplitSeq(shown, "/") {
		if secretPart(part) {
			return "holds secrets"
		}
	}
	base := path.Base(shown)
	ext := strings.ToLower(path.Ext(base))
	switch {
	case slices.Contains(secretNames, base):
		return "holds secrets"
	case slices.Contains(keyStores, ext):
		return "is a store of keys"
	case slices.Contains(keyFiles, ext) && privateKey(name, ext):
		return "is a private key"
	}
	return ""
}

// secretPart reports whether nothing of that name, or below it, leaves the machine.
func secretPart(name string) bool {
	return strings.HasPrefix(name, ".dev.vars") || strings.HasPrefix(name, ".env") || slices.Contains(secretDirs, name)
}

// secretPath is the part of a secret file's path that names what is kept here: the
// file, or the directory of which nothing leaves.
func secretPath(shown string) string {
	parts := strings.Split(shown, "/")
	for i, part := range parts {
		if secretPart(part) {
			return strings.Join(parts[:i+1], "/")
		}
	}
	return shown
}

// privateKey reports whether a file is a private key: PEM, or a JSON Web Key.
func privateKey(name, ext string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false // whoever reads it next says what is wrong
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return false
	}
	if ext != ".json" && bytes.Contains(head, []byte("PRIVATE KEY-----")) {
		return true
	}
	if !bytes.Contains(head, []byte(`"kty"`)) {
		return false
	}
	var doc struct {
		jwk
		Keys []jwk `json:"keys"`
	}
	if json.Unmarshal(head, &doc) != nil {
		return false
	}
	return doc.private() || slices.ContainsFunc(doc.Keys, jwk.private)
}

type jwk struct {
	Kty string `json:"kty"`
	D   string `json:"d"` // of a key pair
	K   string `json:"k"` // a symmetric one
}

func (k jwk) private() bool { return k.Kty != "" && (k.D != "" || k.K != "") }
