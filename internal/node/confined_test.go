package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/meter"
	"github.com/scafo/scafo/internal/bucket/s3"
	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/confine"
)

// thief is a deploy command that tries to read what it is told to, and to write it.
const thief = `#!/bin/sh
while read -r file; do
	if cat "$file" >>"$TMPDIR/loot" 2>/dev/null; then echo "read $file" >>"$TMPDIR/did"; fi
	case "$file" in /etc/*|/proc/*) ;; *) # never the machine's own, should this test fail
		if echo x 2>/dev/null >>"$file"; then echo "wrote $file" >>"$TMPDIR/did"; fi ;;
	esac
	ln -s "$file" "$TMPDIR/link" 2>/dev/null
	if cat "$TMPDIR/link" >>"$TMPDIR/loot" 2>/dev/null; then echo "read $file through a link" >>"$TMPDIR/did"; fi
	rm -f "$TMPDIR/link"
	if ln "$file" "$TMPDIR/hard" 2>/dev/null && cat "$TMPDIR/hard" >/dev/null 2>&1; then echo "read $file through a hard link" >>"$TMPDIR/did"; fi
	rm -f "$TMPDIR/hard"
done <wanted
cat own.txt >"$TMPDIR/own" || exit 1
echo '{"worker":"a","version":"0123456789abcdef","location":"s3://b/","dry_run":false}'
`

// Whatever a project makes the runtime's deploy command do, it reaches nothing of the
// node: this holds without any help of a bundler.
func TestADeployReachesNothingOfTheNode(t *testing.T) {
	if err := confine.Supported(); err != nil {
		t.Skip(err)
	}
	state := t.TempDir()
	write := func(name, body string, mode os.FileMode) string {
		t.Helper()
		p := filepath.Join(state, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	command := write("bin/thief", thief, 0o755)
	project, scratch := filepath.Join(state, "staging/one/project"), filepath.Join(state, "staging/one/scratch")
	write("staging/one/project/own.txt", "own", 0o644)
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	wanted := []string{"/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/self/environ", "/proc/1/cmdline", fmt.Sprintf("/proc/%d/environ", os.Getpid())}
	for _, name := range []string{"node.jwk", "admin.jwk", "ingress-token", "bucket.json", "bucket/data/_scafo/fleet.json", "logs/shop/u1/0000000000000001.jsonl", "runtimes/apps/u1/data/state.json", "staging/two/project/secret.js"} {
		p := write(name, "SECRET", 0o644)
		rel, err := filepath.Rel(project, p)
		if err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, p, rel)
	}
	write("staging/one/project/wanted", strings.Join(wanted, "\n")+"\n", 0o644)

	b, err := s3.Open(t.Context(), s3.Config{
		Bucket: "b", Endpoint: "http://127.0.0.1:1", Region: "us-east-1", PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("id", "key", ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	store := &Store{Bucket: meter.New(b), s3: b, target: celld.Target{Bucket: "b/", Endpoint: "http://127.0.0.1:1"}}
	p := newPublisher(command, store, nil, slog.New(slog.DiscardHandler))
	d, err := p.Publish(t.Context(), scafo.Application{Name: "shop", UID: "u1"}, project, project, scratch)
	if err != nil || d.Version != "0123456789abcdef" {
		t.Fatalf("%+v, %v", d, err)
	}
	if own, err := os.ReadFile(filepath.Join(scratch, "own")); err != nil || string(own) != "own" {
		t.Errorf("its own file: %q, %v", own, err)
	}
	if did, err := os.ReadFile(filepath.Join(scratch, "did")); err == nil {
		t.Errorf("it got where it must not:\n%s", did)
	}
	if loot, err := os.ReadFile(filepath.Join(scratch, "loot")); err == nil && len(loot) > 0 {
		t.Errorf("it brought %q", loot)
	}
}
