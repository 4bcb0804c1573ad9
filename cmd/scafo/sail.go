package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scafo/scafo/internal/config"
	"github.com/scafo/scafo/internal/node"
)

func newSail() *cobra.Command {
	c := &cobra.Command{
		Use: "sail", Short: "Run this machine's node",
		Long: "Run this machine's node in the foreground. Whoever may write the fleet's bucket may join it:\nthe node makes its key at its first start and registers itself.\n\nSIGTERM and SIGINT drain and stop everything; SIGHUP starts the program on disk in this\none's place, and leaves the applications running.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := loadConfig(c, nil)
			if err != nil {
				return err
			}
			log := node.Logger(l.Log, os.Stderr)
			ctx, cancel := context.WithCancel(c.Context())
			defer cancel()
			return sail(ctx, l, log, node.Options{Log: log, Hurry: hurry(ctx), Handover: upgrades(ctx, log)})
		},
	}
	addConfig(c)
	return c
}

// sail locks the state directory and runs the node.
func sail(ctx context.Context, l *config.Loaded, log *slog.Logger, o node.Options) error {
	lock, err := node.LockState(ctx, l.Node.State)
	if err != nil {
		return err
	}
	defer lock.Close()
	// The path as it was at the start: after an upgrade it names the new program.
	if o.Executable, err = os.Executable(); err != nil {
		return fmt.Errorf("this program cannot find itself: %w", err)
	}
	if l.Bucket.URL != "" && len(l.Ingress.Token) == 0 {
		log.Warn("ingress.token is not set: each node of this fleet mints its own, and an ingress that follows several of them needs one they share")
	}
	if o.Listener, err = node.InheritedListener(); err != nil {
		return err
	}
	err = node.Run(ctx, l, o)
	var h *node.Handover
	if !errors.As(err, &h) {
		return err
	}
	if err := h.Exec(o.Executable, os.Args); err != nil {
		return fmt.Errorf("the program on disk cannot be started: %w", err)
	}
	return nil
}

// checkTimeout bounds how long the program on disk may take to read its configuration.
const checkTimeout = 10 * time.Second

// upgrades fires when SIGHUP asks for the program on disk and that one agrees with
// its configuration. One that does not is said, and changes nothing.
func upgrades(ctx context.Context, log *slog.Logger) <-chan struct{} {
	out := make(chan struct{})
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hups)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hups:
			}
			if err := checkProgram(ctx); err != nil {
				log.Error("the program on disk does not take this configuration; this one goes on", "cause", err)
				continue
			}
			select {
			case out <- struct{}{}:
			case <-ctx.Done():
			}
			return
		}
	}()
	return out
}

// checkProgram runs `config` of the program on disk with this one's flags.
func checkProgram(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// A program that was replaced is said to be deleted: its path names the new one.
	exe = strings.TrimSuffix(exe, " (deleted)")
	i := slices.Index(os.Args, "sail")
	if i < 0 {
		return errors.New("this program was not started as sail")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	args := append(slices.Clone(os.Args[1:i]), "config")
	out, err := exec.CommandContext(ctx, exe, append(args, os.Args[i+1:]...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
