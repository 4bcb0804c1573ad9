// Package server is the body of `scafo-bucket`: it serves a directory as S3, on
// loopback, with versitygw's POSIX backend. It needs a process of its own: the
// backend changes the working directory, and this package the file mode mask.
//
// An object is a file at its key below the bucket's folder, its ETag (the MD5 of
// its content, or of its parts' MD5s) an extended attribute of it. From that
// follows what keys may look like here, and so everywhere in a fleet:
//
//   - no key lies below another key: p and then p/q is refused with 409
//     (ObjectParentIsFile), and so is p after p/q;
//   - a segment has at most 255 bytes, and none is empty, "." or "..";
//   - .sgwtmp is taken: unfinished writes and uploads in parts lie there.
//
// Writing x, y and x again repeats the ETag of x, so documents that are
// compared-and-swapped carry something that never repeats.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3api"
	"golang.org/x/sys/unix"

	"github.com/scafo/scafo/internal/bucket/embedded/state"
)

// ErrServed says that another process serves this state directory.
var ErrServed = state.ErrServed

// Limits of the server.
const (
	maxConnections = 4096
	maxRequests    = 1024
	maxParts       = 10000 // as in S3
	// stopTimeout bounds how long requests may finish once the server is asked to
	// end. What was acknowledged is on the disk in any case.
	stopTimeout = 3 * time.Second
	// uploadAge is when an unfinished upload in parts is given up.
	uploadAge = 7 * 24 * time.Hour
)

// Options for Serve.
type Options struct {
	Log *slog.Logger
	// Ready, if set, runs once the server listens.
	Ready func(state.Config)
}

// Serve serves the store of the state directory until the context ends. The
// first call makes port, credential and bucket, which stay. It returns ErrServed
// when another process serves the directory.
func Serve(ctx context.Context, stateDir string, o Options) error {
	return serve(ctx, stateDir, o, realDisk)
}

func serve(ctx context.Context, stateDir string, o Options, d disk) error {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dir, err := state.Open(stateDir)
	if err != nil {
		return err
	}
	lock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // the end of the process frees it too
	// A record that is left belongs to a process that held the lock and is gone.
	if err := dir.ForgetProcess(); err != nil {
		return err
	}
	config, err := dir.EnsureConfig()
	if err != nil {
		return err
	}
	unix.Umask(0o077)
	if err := prepare(dir, config); err != nil {
		return err
	}
	if err := state.Free(config.Port); err != nil {
		return fmt.Errorf("the bucket's port %d on 127.0.0.1 is taken; it stays the same for good, since runtimes were given it, "+
			"so stop what uses it (or, with every runtime of this machine stopped, set another port in %s): %w",
			config.Port, dir.ConfigPath(), err)
	}
	s, err := newStore(dir.Data(), d)
	if err != nil {
		return fmt.Errorf("bucket directory %s: %w", dir.Data(), err)
	}
	return run(ctx, dir, config, s, o, log)
}

func run(ctx context.Context, dir state.Dir, config state.Config, s *store, o Options, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ready := func() {
		if err := dir.RecordProcess(); err != nil {
			cancel(fmt.Errorf("recording the process: %w", err))
			return
		}
		log.Info("serving the bucket", "event", "bucket.serving", "endpoint", config.URL(), "directory", dir.Data())
		if o.Ready != nil {
			o.Ready(config)
		}
	}
	ended := make(chan error, 1)
	go func() { // ends with the server, or with the process
		ended <- embedgw.RunVersityGW(ctx, s, &embedgw.Config{
			RootUserAccess: config.AccessKey, RootUserSecret: config.SecretKey,
			Region: config.Region, Ports: []string{config.Address()},
			MaxConnections: maxConnections, MaxRequests: maxRequests, MultipartMaxParts: maxParts,
			KeepAlive: true, Quiet: true, HealthPath: state.HealthPath,
			S3Options: []s3api.Option{s3api.WithOnListen(ready)},
		})
	}()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		log.Info("stopping", "event", "bucket.stopping")
		t := time.NewTimer(stopTimeout)
		defer t.Stop()
		select {
		case err = <-ended:
		case <-t.C: // idle connections of runtimes must not hold it up
		}
	}
	if ferr := dir.ForgetProcess(); err == nil {
		err = ferr
	}
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("bucket: %w", err)
	}
	return nil
}

// prepare makes the bucket's folder, proves that the file system can hold it,
// and removes what a killed server left.
func prepare(dir state.Dir, config state.Config) error {
	root := filepath.Join(dir.Data(), config.Bucket)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("bucket directory: %w", err)
	}
	for _, d := range []string{root, dir.Data(), string(dir)} {
		if err := state.SyncDir(d); err != nil {
			return fmt.Errorf("bucket directory: %w", err)
		}
	}
	if err := sweepProbes(dir.Data()); err != nil {
		return err
	}
	if err := proveAttributes(dir.Data()); err != nil {
		return err
	}
	return sweep(root)
}

// proveAttributes writes an extended attribute and reads it back. ETags live in
// them; without, conditional writes would be ignored.
func proveAttributes(root string) (err error) {
	const needs = "the embedded bucket needs a file system with extended attributes (ext4, xfs, btrfs, zfs; not NFS before 4.2, not FAT): "
	if err := (meta.XattrMeta{}).Test(root); err != nil {
		return fmt.Errorf(needs+"%s: %w", root, err)
	}
	f, err := os.CreateTemp(root, probePattern)
	if err != nil {
		return fmt.Errorf("bucket directory: %w", err)
	}
	defer func() {
		_ = f.Close()
		if rerr := os.Remove(f.Name()); err == nil {
			err = rerr
		}
	}()
	const value = `"d41d8cd98f00b204e9800998ecf8427e"`
	m := meta.XattrMeta{}
	if err := m.StoreAttribute(f, "", "", etagAttribute, []byte(value)); err != nil {
		return fmt.Errorf(needs+"%s: %w", root, err)
	}
	got, err := m.RetrieveAttribute(f, "", "", etagAttribute)
	if err != nil || string(got) != value {
		return fmt.Errorf(needs+"%s: an attribute read back as %q, %w", root, got, err)
	}
	return nil
}

// probePattern is the name of a probe's file, beside the bucket.
const probePattern = ".probe-*"

// sweepProbes removes what a killed probe left.
func sweepProbes(root string) error {
	probes, err := filepath.Glob(filepath.Join(root, probePattern))
	if err != nil {
		return err
	}
	for _, p := range probes {
		if err := os.Remove(p); err != nil {
			return fmt.Errorf("sweeping: %w", err)
		}
	}
	return nil
}

// sweep removes the temporary files of writes that never ended, and uploads in
// parts that nobody finished for long.
func sweep(root string) error {
	temporary := filepath.Join(root, posix.MetaTmpDir)
	entries, err := os.ReadDir(temporary)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweeping: %w", err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(temporary, e.Name())); err != nil {
				return fmt.Errorf("sweeping: %w", err)
			}
		}
	}
	return sweepUploads(filepath.Join(root, posix.MetaTmpMultipartDir))
}

func sweepUploads(root string) error {
	keys, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweeping: %w", err)
	}
	for _, k := range keys {
		dir := filepath.Join(root, k.Name())
		uploads, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("sweeping: %w", err)
		}
		kept := 0
		for _, u := range uploads {
			i, err := u.Info()
			// A name with a dot marks an upload that was being completed; the process
			// that did so is gone, and its caller may try again under the plain name.
			if err == nil && time.Since(i.ModTime()) < uploadAge {
				if err := restore(dir, u.Name()); err != nil {
					return err
				}
				kept++
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, u.Name())); err != nil {
				return fmt.Errorf("sweeping: %w", err)
			}
		}
		if kept == 0 {
			if err := os.Remove(dir); err != nil {
				return fmt.Errorf("sweeping: %w", err)
			}
		}
	}
	return nil
}

func restore(dir, name string) error {
	plain, _, claimed := strings.Cut(name, ".")
	if !claimed || !strings.HasSuffix(name, ".inprogress") {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, plain)); err == nil {
		return nil // begun anew already
	}
	if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, plain)); err != nil {
		return fmt.Errorf("sweeping: %w", err)
	}
	return nil
}
