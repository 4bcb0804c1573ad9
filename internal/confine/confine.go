// Package confine runs a program that sees and writes only the files that it was
// given, by Linux's Landlock. The restriction falls on a process of its own: the
// program that starts it executes itself anew, that process gives its rights up,
// and then becomes the program.
package confine

import "os/exec"

// Rules are what a confined program may reach; everything beneath a directory
// counts. Network and processes are not restricted.
type Rules struct {
	Read  []string `json:"read"`  // files and directories to read and execute
	Write []string `json:"write"` // directories and files to read and write
}

// Main is called first by every program that confines others: it returns at once
// unless this process was started by [Command] to confine itself, and never
// returns then.
func Main() {}

// Apply changes cmd so that it runs under the rules.
func Apply(cmd *exec.Cmd, r Rules) error { return nil }

// Supported says whether this kernel confines; the error says why not.
func Supported() error { return nil }
