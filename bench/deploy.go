package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// firstAnswer is the most that a deploy may take, in bare workerds.
const firstAnswer = 6

// The steps of a deploy. What ends one begins the next.
const (
	stepPack    = "pack"    // until the command says so
	stepUpload  = "upload"  // until the node has accepted it
	stepPublish = "publish" // until the runtime has published it
	stepStart   = "start"   // until a runtime serves it
	stepReady   = "ready"   // until its first answer through the ingress
	// stepEnd is what the command itself takes after that.
	stepEnd = "end of the command"
)

var deploySteps = []string{stepPack, stepUpload, stepPublish, stepStart, stepReady}

// benchDeploy deploys hello under new names, and again with a change, in turns with
// the start of a bare workerd.
func benchDeploy(ctx context.Context, b *bench) error {
	bare, err := b.bareDir()
	if err != nil {
		return err
	}
	f, err := b.startedFleet(ctx)
	if err != nil {
		return err
	}
	err = func() error {
		// A first deploy warms what a node that has been up for a while has warm.
		if _, _, err := f.timedDeploy(ctx, "warm", 0); err != nil {
			return err
		}
		var base, first, again []time.Duration
		var firstSplit, againSplit []map[string]time.Duration
		for round := range b.rounds {
			w, err := b.startBare(ctx, bare)
			if err != nil {
				return err
			}
			w.stop()
			base = append(base, w.took)
			app := fmt.Sprintf("hello%d", round)
			t, s, err := f.timedDeploy(ctx, app, 1)
			if err != nil {
				return err
			}
			first, firstSplit = append(first, t), append(firstSplit, s)
			b.say("round %d: bare %s, deploy %s %v", round, ms(w.took), ms(t), s)
			if t, s, err = f.timedDeploy(ctx, app, 2); err != nil {
				return err
			}
			again, againSplit = append(again, t), append(againSplit, s)
			b.say("round %d: redeploy %s %v", round, ms(t), s)
		}
		b.deployRows("deploy of hello to its first answer", first, base, firstSplit)
		b.deployRows("redeploy of hello to its first answer", again, base, againSplit)
		return nil
	}()
	return errors.Join(err, f.stop())
}

func (b *bench) deployRows(what string, took, base []time.Duration, splits []map[string]time.Duration) {
	b.ratio(what, ms(median(took)), ms(median(base)), median(ratios(took, base)), firstAnswer)
	for _, name := range append(deploySteps, stepEnd) {
		var all []time.Duration
		for _, s := range splits {
			all = append(all, s[name])
		}
		b.number("· "+name, ms(median(all)))
	}
}

// helloProject is examples/hello under another name, with a version in its answer.
func (f *fleet) helloProject(app string, version int) (dir, want string, err error) {
	dir = filepath.Join(f.dir, "hello", app)
	from := filepath.Join(f.b.root, "examples", "hello")
	config, err := os.ReadFile(filepath.Join(from, "wrangler.jsonc"))
	if err != nil {
		return "", "", err
	}
	source, err := os.ReadFile(filepath.Join(from, "src", "index.ts"))
	if err != nil {
		return "", "", err
	}
	want = fmt.Sprintf("Hello%d, ", version)
	changed := strings.Replace(string(config), `"name": "hello"`, fmt.Sprintf(`"name": %q`, app), 1)
	changed = strings.Replace(changed, `"GREETING": "Hello"`, fmt.Sprintf(`"GREETING": "Hello%d"`, version), 1)
	if !strings.Contains(changed, fmt.Sprintf("%q", app)) || !strings.Contains(changed, fmt.Sprintf("Hello%d", version)) {
		return "", "", errors.New("examples/hello is not what this benchmark knows")
	}
	return dir, want, errors.Join(
		os.MkdirAll(filepath.Join(dir, "src"), 0o700),
		os.WriteFile(filepath.Join(dir, "wrangler.jsonc"), []byte(changed), 0o600),
		os.WriteFile(filepath.Join(dir, "src", "index.ts"), source, 0o600))
}

// timedDeploy deploys hello and says how long it took until the answer of this very
// version came, and how that is made up.
func (f *fleet) timedDeploy(ctx context.Context, app string, version int) (time.Duration, map[string]time.Duration, error) {
	dir, want, err := f.helloProject(app, version)
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.CommandContext(ctx, f.b.program("scafo"), "deploy", dir)
	cmd.Env = environment("SCAFO_PROFILE=" + f.profile)
	lines, err := cmd.StderrPipe()
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	answer := make(chan moment, 1)
	go func() { answer <- f.firstAnswer(ctx, app, want, began) }()
	ends := map[string]time.Time{}
	said := &strings.Builder{}
	for s := bufio.NewScanner(lines); s.Scan(); {
		if strings.HasPrefix(s.Text(), "packed ") {
			ends[stepPack] = time.Now()
		}
		said.WriteString(s.Text() + "\n")
	}
	if err := cmd.Wait(); err != nil {
		return 0, nil, fmt.Errorf("scafo deploy: %w: %s", err, said)
	}
	ended := time.Now()
	first := <-answer
	if first.err != nil {
		return 0, nil, first.err
	}
	ends[stepReady] = first.at
	for name, match := range map[string]func(event) bool{
		stepUpload:  func(e event) bool { return e.Event == "deploy.accepted" },
		stepPublish: func(e event) bool { return e.Event == "deploy.published" },
		stepStart:   func(e event) bool { return e.Msg == "the runtime is ready" || e.Msg == "reload" },
	} {
		e, err := f.await(ctx, began, func(e event) bool { return e.Application == app && match(e) })
		if err != nil {
			return 0, nil, fmt.Errorf("the node's log does not tell the end of %q: %w", name, err)
		}
		ends[name] = e.Time
	}
	parts := map[string]time.Duration{stepEnd: ended.Sub(first.at)}
	from := began
	for _, name := range deploySteps {
		parts[name] = ends[name].Sub(from)
		from = ends[name]
	}
	return first.at.Sub(began), parts, nil
}

// moment is when something happened, or why it did not.
type moment struct {
	at  time.Time
	err error
}

// answerLook is how often the first answer is asked for once the version is
// published: seldom enough to leave the machine to the deploy.
const answerLook = 2 * time.Millisecond

// firstAnswer waits for the first answer of a version.
func (f *fleet) firstAnswer(ctx context.Context, app, want string, began time.Time) moment {
	_, err := f.await(ctx, began, func(e event) bool { return e.Application == app && e.Event == "deploy.published" })
	for last := errors.New("nothing came"); ; {
		if err != nil {
			return moment{err: fmt.Errorf("%s does not answer: %w", app, errors.Join(err, last))}
		}
		body, asked := f.get(ctx, f.address(app))
		if asked == nil && strings.Contains(body, want) {
			return moment{at: time.Now()}
		}
		if asked != nil {
			last = asked
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(answerLook):
		}
	}
}
