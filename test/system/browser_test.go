//go:build system && browser

package system

import (
	"bufio"
	"fmt"
	"image"
	_ "image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A browser opens the chat over HTTPS, two of its pages talk to each other, and go on
// after a redeploy. The picture that it takes at the end is kept in the folder that
// SCAFO_SCREENSHOTS names.
func TestABrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: apt-get install chromium")
	}
	c := newCluster(t, 1)
	i := &secureIngress{t: t, c: c, name: "the ingress", http: freePort(t), https: freePort(t)}
	i.beginWithFile("\tlocal_certs\n\tskip_install_trust\n")
	chat := project(t, map[string]string{})
	if err := os.CopyFS(chat, os.DirFS(c.example("chat"))); err != nil {
		t.Fatal(err)
	}
	c.deploy(chat)

	dir := os.Getenv("SCAFO_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	picture := filepath.Join(dir, "chat.png")
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join(root(t), "test", "system", "testdata", "browser.cjs"),
		browser, fmt.Sprintf("MAP *.apps.test 127.0.0.1:%d", i.https), picture)
	cmd.Env = append(environment(), "NODE_PATH="+builtProgram(t, "PLAYWRIGHT_VERSION", "playwright-core", "node_modules"))
	var said logBuffer
	cmd.Stderr = &said
	tell, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	hears := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			_ = tell.Close()
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
			t.Fatalf("the browser says %q, and not %q\n%s", lines.Text(), want, said.String())
		}
	}
	hears("talked over h2")
	page := filepath.Join(chat, "public", "index.html")
	text := strings.Replace(string(readFile(t, page)), "<h1>Chat</h1>", "<h1>Chat, once more</h1>", 1)
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.deploy(chat)
	if _, err := fmt.Fprintln(tell, "deployed"); err != nil {
		t.Fatal(err)
	}
	hears("talked again")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	notBlank(t, picture)
	t.Log("the picture:", picture)
}

// notBlank looks at a picture: a page with words on it has more than two colours.
func notBlank(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, _, err := image.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	colours := map[[3]uint32]bool{}
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, bl, _ := img.At(x, y).RGBA()
			colours[[3]uint32{r, g, bl}] = true
		}
	}
	if len(colours) < 10 || b.Dx() < 600 {
		t.Errorf("%s is %v with %d colours", file, b, len(colours))
	}
}
