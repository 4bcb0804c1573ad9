//go:build system

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/scafo/scafo"
)

// A full disk fails the deploy, says so, and leaves nothing behind; the node goes
// on. The disk is a small file system of the test's own, in namespaces of its own.
func TestFullDisk(t *testing.T) {
	const inside = "SCAFO_TEST_FULL_DISK"
	if dir := os.Getenv(inside); dir != "" {
		fullDisk(t, dir)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func fullDisk(t *testing.T, dir string) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	n := w.start("a", stagedIn(filepath.Join(dir, "staging"))).run()
	defer n.stop()
	if st := n.deploy("shop", "v1"); st.State != scafo.DeployDeployed {
		t.Fatalf("ended as %+v", st)
	}
	for name, size := range map[string]int{"while it arrives": 400 << 10, "while it is unpacked": 150 << 10} {
		body := archiveOf(t, map[string]string{"wrangler.jsonc": "v2", "big": strings.Repeat("x", size)})
		_, err := n.accept("shop", body)
		if scafo.CodeOf(err) != scafo.CodeDeployOverloaded || !strings.Contains(err.Error(), "disk") {
			t.Errorf("%s: %v", name, err)
		}
		w.check(n)
	}
	if st := n.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
		t.Errorf("afterwards: %+v", st)
	}
	w.check(n)
}
