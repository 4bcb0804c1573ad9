package main

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
)

// gitTimeout bounds all questions to git: a deploy does not wait for it.
const gitTimeout = 2 * time.Second

// providers are the names of forges by host.
var providers = map[string]string{
	"github.com": "github", "gitlab.com": "gitlab", "bitbucket.org": "bitbucket", "codeberg.org": "codeberg",
}

// findSource asks git where a directory's content comes from. What it sends is nil
// where there is no answer.
func findSource(ctx context.Context, dir string) <-chan *scafo.Source {
	out := make(chan *scafo.Source, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, gitTimeout)
		defer cancel()
		out <- gitSource(ctx, dir)
	}()
	return out
}

// inRepository reports whether git would find a repository for dir, so that it need
// not be started where there is none: one of the folders above has a .git.
func inRepository(dir string) bool {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return true // let git say
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return false
		}
		dir = parent
	}
}

func gitSource(ctx context.Context, dir string) *scafo.Source {
	if !inRepository(dir) {
		return nil
	}
	git := func(args ...string) string {
		// The repository's own configuration starts no programs.
		c := exec.CommandContext(ctx, "git", append([]string{"-c", "core.fsmonitor=false", "-C", dir}, args...)...)
		// Nor does a repository that this command was started from, as by a hook, count.
		env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GIT_") })
		c.Env = append(env, "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
		c.WaitDelay = gitTimeout
		b, err := c.Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	commit := git("rev-parse", "--verify", "-q", "HEAD")
	if commit == "" {
		return nil
	}
	ref := git("symbolic-ref", "-q", "HEAD")
	if ref == "" {
		ref = detachedRef(commit)
	}
	top := git("rev-parse", "--show-toplevel")
	provider, repo := splitRemote(remoteURL(git))
	if repo == "" {
		provider, repo = "git", filepath.Base(top)
	}
	if repo == "" || repo == "." || repo == string(filepath.Separator) {
		return nil
	}
	if git("status", "--porcelain", "--untracked-files=no", "--", ".") != "" {
		commit += "-dirty"
	}
	return &scafo.Source{Provider: provider, Repo: repo, Ref: ref, Commit: commit}
}

// detachedRef is the ref of a checkout of no branch, which is what pipelines make:
// they say it in their environment.
func detachedRef(commit string) string {
	switch {
	case os.Getenv("GITHUB_SHA") == commit && os.Getenv("GITHUB_REF") != "":
		return os.Getenv("GITHUB_REF")
	case os.Getenv("CI_COMMIT_SHA") != commit:
	case os.Getenv("CI_COMMIT_TAG") != "":
		return "refs/tags/" + os.Getenv("CI_COMMIT_TAG")
	case os.Getenv("CI_COMMIT_BRANCH") != "":
		return "refs/heads/" + os.Getenv("CI_COMMIT_BRANCH")
	}
	return "HEAD"
}

// remoteURL is the address of origin, or of the first remote.
func remoteURL(git func(...string) string) string {
	if u := git("config", "--get", "remote.origin.url"); u != "" {
		return u
	}
	name, _, _ := strings.Cut(git("remote"), "\n")
	if name == "" {
		return ""
	}
	return git("config", "--get", "remote."+name+".url")
}

// splitRemote reads a remote's address: the forge and the repository there, without
// anything that gives access.
func splitRemote(remote string) (provider, repo string) {
	var host, at string
	if u, err := url.Parse(remote); err == nil && u.Scheme != "" && u.Host != "" {
		host, at = u.Hostname(), u.Path
	} else if before, after, ok := strings.Cut(remote, ":"); ok && !strings.Contains(before, "/") && !strings.HasPrefix(after, "//") {
		// user@host:path, as scp takes it.
		host, at = before[strings.LastIndexByte(before, '@')+1:], after
	} else {
		return "", "" // a directory of this machine is nobody else's business
	}
	at = strings.TrimSuffix(strings.Trim(path.Clean("/"+at), "/"), ".git")
	if host == "" || at == "" {
		return "", ""
	}
	host = strings.ToLower(host)
	if p, ok := providers[host]; ok {
		return p, at
	}
	return "git", host + "/" + at
}
