package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// bucketProgram serves the embedded store. It lies beside this program.
const bucketProgram = "scafo-bucket"

func newBucket() *cobra.Command {
	var state string
	c := &cobra.Command{
		Use: "bucket", Short: "Serve the embedded store of a state directory, on loopback",
		Long: "Serve a directory below the state directory as an S3 store on loopback. `scafo sail` and\n`scafo up` start this by themselves where no bucket is configured. The server itself is the\nprogram scafo-bucket, beside this one.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			program, err := findBucketProgram()
			if err != nil {
				return err
			}
			err = syscall.Exec(program, []string{program, "--state", state}, os.Environ()) //nolint:gosec // scafo's own program
			return fmt.Errorf("%s: %w", program, err)
		},
	}
	c.Flags().StringVar(&state, "state", "", "the state directory")
	if err := c.MarkFlagRequired("state"); err != nil {
		panic(err) // the flag is defined above
	}
	return c
}

// findBucketProgram looks beside this program, wherever links to it lie, and then
// on PATH.
func findBucketProgram() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	beside := filepath.Join(filepath.Dir(exe), bucketProgram)
	if path, err := exec.LookPath(beside); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(bucketProgram); err == nil {
		return path, nil
	}
	return "", errors.New(beside + " is missing: it belongs to scafo and serves the embedded store; a fleet with a bucket of its own needs none")
}
