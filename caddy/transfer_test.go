package caddy

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// Caddy's own commands move certificates from a disk into the fleet's storage, and back
// from there, decrypted.
func TestCertificatesMoveWithCaddysCommands(t *testing.T) {
	node := httptest.NewServer(newFleetStore().handler(t))
	t.Cleanup(node.Close)
	dir := t.TempDir()
	config := func(name string, storage any) string {
		b, err := json.Marshal(map[string]any{"storage": storage})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".json")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	scafo := map[string]any{"module": "scafo", "nodes": []string{node.URL}, "token": token, "encryption_keys": []string{"correct horse battery"}}
	disk := func(name string) string {
		return config(name, map[string]string{"module": "file_system", "root": filepath.Join(dir, name)})
	}
	values := map[string][]byte{
		"certificates/acme.example-directory/shop.example/shop.example.crt": []byte("-----BEGIN CERTIFICATE-----\n"),
		"certificates/acme.example-directory/shop.example/shop.example.key": bytes.Repeat([]byte{0, 0xff}, 70000),
		"acme/acme.example-directory/users/ops@example.com/ops.json":        []byte("{}"),
	}
	for key, value := range values {
		file := filepath.Join(dir, "old", filepath.FromSlash(key))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, value, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		root := new(cobra.Command)
		storage := &cobra.Command{Use: "storage"}
		caddycmd.Commands()["storage"].CobraFunc(storage)
		root.AddCommand(storage)
		root.SetArgs(append([]string{"storage"}, args...))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	there, back := filepath.Join(dir, "there.tar"), filepath.Join(dir, "back.tar")
	fleet := config("fleet", scafo)
	run("export", "--config", disk("old"), "--output", there)
	run("import", "--config", fleet, "--input", there)
	run("export", "--config", fleet, "--output", back)
	run("import", "--config", disk("new"), "--input", back)

	found := 0
	err := filepath.WalkDir(filepath.Join(dir, "new"), func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		found++
		key, err := filepath.Rel(filepath.Join(dir, "new"), file)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(file)
		if want, known := values[filepath.ToSlash(key)]; !known || !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes, want %d", key, len(got), len(want))
		}
		return err
	})
	if err != nil || found != len(values) {
		t.Errorf("%d of %d came back: %v", found, len(values), err)
	}
}
