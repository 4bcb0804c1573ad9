package confine

import (
	"os"
	"path/filepath"
	"strings"
)

// system is what programs need of the machine to run at all: libraries, the names
// of hosts, certificate authorities, time zones, and randomness. Whole directories
// of configuration are not among it: some keep private keys.
//
// Nothing of /proc is: it would show a program's own variables, credentials among
// them, to a build that reads files by name. So is nothing of /sys.
var system = []string{
	"/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec",
	"/usr/local/bin", "/usr/local/lib", "/nix/store",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
	"/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
	"/etc/ca-certificates/extracted", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/usr/lib/ssl",
	"/etc/localtime", "/usr/share/zoneinfo",
	"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
}

// beside are the programs and packages that a runtime's program looks for next to
// itself, relative to its directory.
var beside = []string{
	"workerd", "esbuild",
	"../node_modules/workerd", "../node_modules/@cloudflare", "../node_modules/esbuild", "../node_modules/@esbuild",
	"../lib",
}

// pathVariables are the variables whose values are files that a runtime reads.
var pathVariables = []string{"CELLD_ESBUILD", "CELLD_WORKERD_BIN", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// Toolchain is what a runtime's program, to be executed with these variables, needs
// to read: itself, the programs that it uses, and what it needs of the system.
func Toolchain(program string, env []string) []string {
	var out []string
	add := func(paths ...string) {
		for _, p := range paths {
			if p == "" {
				continue
			}
			out = append(out, p)
		}
	}
	add(system...)
	vars := map[string]string{}
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok {
			vars[name] = value
		}
	}
	for _, p := range tool(program) {
		add(p)
		for _, b := range beside {
			add(filepath.Join(filepath.Dir(p), b))
		}
	}
	for _, name := range pathVariables {
		add(vars[name])
		if packages, ok := packagesOf(vars[name]); ok {
			add(packages)
		}
	}
	for _, dir := range filepath.SplitList(vars["PATH"]) {
		for _, name := range []string{"esbuild", "workerd"} {
			for _, p := range tool(filepath.Join(dir, name)) {
				add(p)
				if packages, ok := packagesOf(p); ok {
					add(packages)
				}
			}
		}
	}
	return out
}

// tool is a program's file, and the file that it is a link to.
func tool(path string) []string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if info, err := os.Stat(real); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if real == path {
		return []string{path}
	}
	return []string{path, real}
}

// packagesOf is the directory of packages that a file lies in, if it does.
func packagesOf(path string) (string, bool) {
	const dir = "/node_modules/"
	i := strings.LastIndex(path, dir)
	if i < 0 {
		return "", false
	}
	return path[:i+len(dir)-1], true
}
