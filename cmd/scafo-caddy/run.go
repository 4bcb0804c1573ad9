package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/pflag"

	scafocaddy "github.com/scafo/scafo/caddy"
)

// Exit codes, as scafo's own commands have them.
const (
	exitFailed = 1
	exitUsage  = 2
)

type flags struct {
	ownState  bool // --state was given
	nodes     []string
	tokenFile string
	keyFile   string
	prefer    string
	options   scafocaddy.Options
}

func parse(args []string) (*flags, error) {
	f := &flags{}
	fs := pflag.NewFlagSet("scafo-caddy run", pflag.ContinueOnError)
	fs.StringArrayVar(&f.nodes, "node", nil, "base URL of a node's API, repeatable")
	fs.StringVar(&f.tokenFile, "ingress-token-file", "", "file with the ingress token (else SCAFO_INGRESS_TOKEN)")
	fs.StringVar(&f.prefer, "prefer", "", "put this node's processes first; self is the node that is asked")
	fs.StringVar(&f.options.Listen, "listen", "", "address to listen on (default all)")
	fs.IntVar(&f.options.HTTPPort, "http-port", 80, "port for HTTP")
	fs.IntVar(&f.options.HTTPSPort, "https-port", 443, "port for HTTPS")
	fs.BoolVar(&f.options.HTTPOnly, "http-only", false, "serve plain HTTP, without certificates")
	fs.StringVar(&f.options.State, "state", "", "directory for the last routing document, and what Caddy keeps for itself")
	fs.StringVar(&f.keyFile, "encryption-key-file", "", "file with secrets, one a line, that encrypt the stored certificates; the first one encrypts, all of them decrypt")
	fs.DurationVar(&f.options.GracePeriod, "grace-period", time.Minute, "how long requests that are open when it is told to end go on")
	fs.StringVar(&f.options.Email, "email", "", "contact for the certificate authority")
	fs.StringVar(&f.options.ACMEDirectory, "acme-directory", "", "ACME directory URL of another authority")
	fs.StringVar(&f.options.ACMERoot, "acme-root", "", "PEM file with the root of that authority's own TLS")
	fs.StringVar(&f.options.MetricsListen, "metrics-listen", "", "address for Prometheus, at /metrics (default off)")
	fs.StringVar(&f.options.LogLevel, "log-level", "", "least level that is logged")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() != 0 {
		return nil, fmt.Errorf("unknown argument %q", fs.Arg(0))
	}
	if f.ownState = f.options.State != ""; !f.ownState {
		f.options.State = filepath.Join(caddy.AppDataDir(), "scafo")
	}
	return f, nil
}

// token reads the ingress token: the file's first line, or the first of the
// comma-separated tokens of SCAFO_INGRESS_TOKEN.
func (f *flags) token() (string, error) {
	if f.tokenFile != "" {
		b, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return "", fmt.Errorf("the ingress token: %w", err)
		}
		line, _, _ := strings.Cut(string(b), "\n")
		if line = strings.TrimSpace(line); line == "" {
			return "", fmt.Errorf("the ingress token: %s is empty", f.tokenFile)
		}
		return line, nil
	}
	t, _, _ := strings.Cut(os.Getenv("SCAFO_INGRESS_TOKEN"), ",")
	if t = strings.TrimSpace(t); t == "" {
		return "", errors.New("no ingress token: set SCAFO_INGRESS_TOKEN or --ingress-token-file")
	}
	return t, nil
}

// encryptionKeys reads the secrets that encrypt what is stored.
func (f *flags) encryptionKeys() ([]string, error) {
	if f.keyFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(f.keyFile)
	if err != nil {
		return nil, fmt.Errorf("the encryption key: %w", err)
	}
	var keys []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			keys = append(keys, line)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("the encryption key: %s is empty", f.keyFile)
	}
	return keys, nil
}

func run(args []string) int {
	f, err := parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scafo-caddy:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "scafo-caddy:", serve(f))
	return exitFailed
}

// keepTo makes Caddy keep what it writes for itself, as the id of this installation, in
// the state directory: it asks the environment where that belongs.
func (f *flags) keepTo() error {
	if !f.ownState {
		return nil
	}
	state, err := filepath.Abs(f.options.State)
	if err != nil {
		return err
	}
	if err := os.Setenv("XDG_DATA_HOME", state); err != nil {
		return err
	}
	caddy.DefaultStorage.Path = caddy.AppDataDir() // what has no storage of its own, as without HTTPS
	return nil
}

// serve runs until Caddy ends the process, or returns why it cannot go on.
func serve(f *flags) error {
	if err := f.keepTo(); err != nil {
		return err
	}
	token, err := f.token()
	if err != nil {
		return err
	}
	if f.options.EncryptionKeys, err = f.encryptionKeys(); err != nil {
		return err
	}
	f.options.Fleet = scafocaddy.Fleet{Name: "main", Nodes: f.nodes, Token: token, Prefer: f.prefer}
	// Caddy ends the process itself, after the requests that are open.
	caddy.TrapSignals()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := handedOn(&f.options, os.Getpid(), os.Getenv); err != nil {
		return err
	}
	if err := portsFree(f.options); err != nil {
		return err
	}
	if err := caddy.Run(f.options.Config()); err != nil {
		return err
	}
	// Whoever started this program may wait for the line.
	fmt.Println("scafo-caddy: serving")
	return secondSignal(signals)
}

// secondSignal returns when the program shall end at once: the first signal is Caddy's.
func secondSignal(signals <-chan os.Signal) error {
	for told := 0; told < 2; {
		switch <-signals {
		case syscall.SIGHUP:
			// The terminal is gone. Caddy ignores that, and whoever sits there would not.
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
		default:
			told++
		}
	}
	return errors.New("told twice to end: requests that were open are cut")
}

// portsFree says which port is taken, in words that name it.
func portsFree(o scafocaddy.Options) error {
	var ports []int
	if o.HTTPSocket == 0 {
		ports = append(ports, o.HTTPPort)
	}
	if !o.HTTPOnly && o.HTTPSSocket == 0 {
		ports = append(ports, o.HTTPSPort)
	}
	for _, p := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(o.Listen, strconv.Itoa(p)))
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("port %d is taken by another program; choose another one", p)
		}
		if errors.Is(err, syscall.EACCES) {
			return fmt.Errorf("port %d needs root (or the capability cap_net_bind_service)", p)
		}
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}
