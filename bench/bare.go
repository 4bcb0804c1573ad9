package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// bareConfig is hello for a workerd that nothing supervises.
const bareConfig = `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "worker", worker = (
    modules = [(name = "index.js", esModule = embed "index.js")],
    compatibilityDate = "2026-11-01",
    bindings = [(name = "GREETING", text = "Hello")],
  ))],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "worker")],
);
`

// bareHello is examples/hello as it is once its types are gone.
const bareHello = `export default {
	async fetch(request, env) {
		const name = new URL(request.url).searchParams.get("name") ?? "world";
		return new Response(` + "`${env.GREETING}, ${name}!\\n`" + `);
	},
};
`

// bareWorkerd is a workerd alone.
type bareWorkerd struct {
	cmd  *exec.Cmd
	port int
	// took is how long its first answer took, from its start.
	took time.Duration
}

func (b *bench) bareDir() (string, error) {
	dir, err := b.sub("bare")
	if err != nil {
		return "", err
	}
	return dir, errors.Join(
		os.WriteFile(filepath.Join(dir, "config.capnp"), []byte(bareConfig), 0o600),
		os.WriteFile(filepath.Join(dir, "index.js"), []byte(bareHello), 0o600))
}

// startBare starts a workerd and waits for its first answer.
func (b *bench) startBare(ctx context.Context, dir string) (*bareWorkerd, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	w := &bareWorkerd{port: port}
	w.cmd = exec.Command(b.workerd, "serve", "config.capnp", "config", "-s", "http=127.0.0.1:"+strconv.Itoa(port))
	w.cmd.Dir = dir
	began := time.Now()
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	for {
		if err = answered(ctx, url); err == nil {
			w.took = time.Since(began)
			return w, nil
		}
		if ctx.Err() != nil || time.Since(began) > patience {
			w.stop()
			return nil, fmt.Errorf("a bare workerd does not answer: %w", err)
		}
		time.Sleep(look)
	}
}

// once is a client that keeps no connections.
var once = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

func answered(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := once.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return err
}

func (w *bareWorkerd) stop() {
	_ = w.cmd.Process.Kill() // it has nothing to lose
	_ = w.cmd.Wait()
}
