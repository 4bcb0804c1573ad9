package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/scafo/scafo"
)

// serve is the program without a subcommand.
func serve(ctx context.Context, c Command, env Env, stdout, stderr io.Writer) int {
	// Whoever started this program may go, and with it the reader of its output.
	signal.Ignore(syscall.SIGPIPE)
	log := slog.New(slog.NewTextHandler(stdout, &slog.HandlerOptions{Level: logLevel(env.LogLevel)}))
	err := run(ctx, c, env, log)
	if err != nil {
		fmt.Fprintf(stderr, "Error: %s\n", oneLine(err))
	}
	return exitCode(err)
}

// logLevel takes the plain levels of RUST_LOG; a filter by module means info.
func logLevel(s string) slog.Level {
	switch s {
	case "trace", "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error", "off":
		return slog.LevelError
	}
	return slog.LevelInfo
}

func run(ctx context.Context, c Command, env Env, log *slog.Logger) error {
	if c.InternalListen.Addr().IsUnspecified() && c.Advertise == "" {
		return fmt.Errorf("--internal-listen %s is every address: --advertise has to say which one others reach", c.InternalListen)
	}
	workerd, err := Locate(env, executable())
	if err != nil {
		return err
	}
	public, internal, err := bind(c)
	if err != nil {
		return err
	}
	defer public.Close()
	defer internal.Close()
	dir, err := openDataDir(env.Watch, target(c))
	if err != nil {
		return err
	}
	defer dir.close()
	st, err := openStore(ctx, c, env)
	if err != nil {
		return fmt.Errorf("the bucket: %w", err)
	}
	lines := newLineLog(log)
	defer lines.close()
	cache, err := newCacheServer(log)
	if err != nil {
		return fmt.Errorf("the Worker's caches: %w", err)
	}
	defer cache.close()
	rt := newWorkerdRuntime(st, workerd, dir, c, env, log, lines)
	rt.cache = cache.at
	defer rt.close()
	s := New(rt, Options{
		Node: env.Node, DeployPoll: env.DeployPoll, DeployMaxAge: env.DeployMaxAge,
		ShutdownTotal: env.ShutdownTotal, MaxRSS: env.MaxRSS, AnswerWithin: env.AnswerWithin, Trust: c.TrustForwarded, Log: log,
	})
	log.Info("listening", "program", Name, "version", scafo.Version, "pid", os.Getpid(),
		"public", "http://"+public.Addr().String(), "internal", "http://"+internal.Addr().String())

	signals, unlisten := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer unlisten()
	stop := context.AfterFunc(signals, s.Stop)
	defer stop()
	return s.Run(public, internal)
}

// bind takes both ports before anything else happens.
func bind(c Command) (public, internal net.Listener, err error) {
	public, err = net.Listen("tcp", c.Listen.String())
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	internal, err = net.Listen("tcp", c.InternalListen.String())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--internal-listen: %w", err), public.Close())
	}
	return public, internal, nil
}
