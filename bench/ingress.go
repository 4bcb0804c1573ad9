package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// loaders is how many clients ask at once.
const loaders = 8

// What of a load has a goal, where celld-workerd is compared with the workerd behind
// it.
const (
	perSecond     = "requests per second"
	half          = "p50"
	proxyRateGoal = 0.6
	proxyTimeGoal = 1.5
)

// loadResult is what a load saw.
type loadResult struct {
	perSecond float64
	p50, p99  time.Duration
}

// load asks a URL under a host for some time.
func load(ctx context.Context, url, host string, how time.Duration) (loadResult, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: loaders}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	ctx, cancel := context.WithTimeout(ctx, how)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	var failure error
	var wg sync.WaitGroup
	began := time.Now()
	for range loaders {
		wg.Go(func() {
			var mine []time.Duration
			var err error
			for ctx.Err() == nil && err == nil {
				asked := time.Now()
				if err = ask(client, url, host); err == nil {
					mine = append(mine, time.Since(asked))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
			failure = errors.Join(failure, err)
		})
	}
	wg.Wait()
	took := time.Since(began)
	slices.Sort(all)
	return loadResult{float64(len(all)) / took.Seconds(), percentile(all, 0.5), percentile(all, 0.99)}, failure
}

func ask(client *http.Client, url, host string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Host = host
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, res.StatusCode)
	}
	return nil
}

// benchIngress loads hello through scafo-caddy, through plain Caddy with a static
// upstream, through celld-workerd alone, and a workerd that nothing stands before.
func benchIngress(ctx context.Context, b *bench) error {
	f, err := b.startedFleet(ctx)
	if err != nil {
		return err
	}
	return errors.Join(b.loadIngress(ctx, f), f.stop())
}

func (b *bench) loadIngress(ctx context.Context, f *fleet) error {
	dir, _, err := f.helloProject("hello", 1)
	if err != nil {
		return err
	}
	if _, err := f.deploy(ctx, dir); err != nil {
		return err
	}
	s, err := f.client.State(ctx)
	if err != nil || len(s.Processes) != 1 {
		return fmt.Errorf("one process is expected: %+v %w", s.Processes, err)
	}
	runtime := s.Processes[0].URL
	plain, stop, err := b.plainCaddy(ctx, runtime)
	if err != nil {
		return err
	}
	defer stop()
	bareDir, err := b.bareDir()
	if err != nil {
		return err
	}
	bare, err := b.startBare(ctx, bareDir)
	if err != nil {
		return err
	}
	defer bare.stop()
	targets := []struct{ url, host string }{
		{fmt.Sprintf("http://127.0.0.1:%d/", f.http), "hello.localhost"},
		{plain, "hello.localhost"},
		{runtime, "hello.localhost"},
		{fmt.Sprintf("http://127.0.0.1:%d/", bare.port), "hello.localhost"},
	}
	results := make([][]loadResult, len(targets))
	for round := range b.rounds {
		for i, t := range targets {
			r, err := load(ctx, t.url, t.host, b.load)
			if err != nil {
				return err
			}
			b.say("round %d: %s %+v", round, t.url, r)
			results[i] = append(results[i], r)
		}
	}
	b.compareLoads("scafo-caddy", results[0], "plain Caddy", results[1], nil)
	b.compareLoads("scafo-caddy", results[0], "celld-workerd alone", results[2], nil)
	b.compareLoads("celld-workerd", results[2], "bare workerd", results[3], map[string]goal{perSecond: {Least: proxyRateGoal}, half: {Most: proxyTimeGoal}})
	return nil
}

func (b *bench) compareLoads(name string, of []loadResult, baseName string, base []loadResult, goals map[string]goal) {
	column := func(rs []loadResult, get func(loadResult) float64) []float64 {
		out := make([]float64, len(rs))
		for i, r := range rs {
			out[i] = get(r)
		}
		return out
	}
	for _, m := range []struct {
		what string
		get  func(loadResult) float64
		show func(float64) string
	}{
		{perSecond, func(r loadResult) float64 { return r.perSecond }, func(v float64) string { return fmt.Sprintf("%.0f/s", v) }},
		{half, func(r loadResult) float64 { return float64(r.p50) }, func(v float64) string { return us(time.Duration(v)) }},
		{"p99", func(r loadResult) float64 { return float64(r.p99) }, func(v float64) string { return us(time.Duration(v)) }},
	} {
		a, z := column(of, m.get), column(base, m.get)
		b.add(row{
			Part: b.part, What: fmt.Sprintf("%s against %s, %s", name, baseName, m.what),
			Value: m.show(median(a)), Base: m.show(median(z)), Ratio: median(ratios(a, z)), Goal: goals[m.what],
		})
	}
}

// plainCaddy is Caddy with one static upstream.
func (b *bench) plainCaddy(ctx context.Context, upstream string) (url string, stop func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	dir, err := b.sub("caddy")
	if err != nil {
		return "", nil, err
	}
	file := filepath.Join(dir, "Caddyfile")
	config := fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n}\nhttp://:%d {\n\tbind 127.0.0.1\n\treverse_proxy %s\n}\n", port, strings.TrimPrefix(upstream, "http://"))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(b.program("scafo-caddy"), "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = environment("HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill() // it has nothing to lose
		_ = cmd.Wait()
	}
	began := time.Now()
	for {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			c.Close()
			return fmt.Sprintf("http://127.0.0.1:%d/", port), stop, nil
		}
		if ctx.Err() != nil || time.Since(began) > patience {
			stop()
			return "", nil, fmt.Errorf("plain Caddy does not listen: %w", err)
		}
		time.Sleep(look)
	}
}
