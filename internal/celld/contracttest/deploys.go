package contracttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/scafo/scafo/internal/celld"
)

const hello = `export default { fetch() { return new Response("hello") } }`

// helloSays is hello with other words.
func helloSays(words string) string {
	return fmt.Sprintf("export default { fetch() { return new Response(%q) } }", words)
}

func testDeployJSON(b *bench) {
	f := b.tryDeploy(plain(hello))
	r := b.published(f)
	if r.Worker != scriptName || r.DryRun || r.Location == "" {
		b.Errorf("%+v", r)
	}
	var fields map[string]any
	d := json.NewDecoder(strings.NewReader(f.stdout))
	if err := d.Decode(&fields); err != nil || d.More() {
		b.Errorf("not one object: %v", err)
	}
	for _, name := range []string{"worker", "version", "location", "dry_run"} {
		if _, ok := fields[name]; !ok {
			b.Errorf("no %s in %s", name, f.stdout)
		}
	}
}

func testDeployLayout(b *bench) {
	asset := "<h1>a page</h1>\n"
	r := b.deploy(subject("one").with(files{
		"public/index.html": asset,
		"wrangler.jsonc": config(map[string]any{
			"main": "src/index.js", "assets": map[string]any{"directory": "public"},
			"durable_objects": map[string]any{"bindings": []any{map[string]any{"name": "COUNTER", "class_name": "Counter"}}},
			"migrations":      []any{map[string]any{"tag": "v1", "new_sqlite_classes": []any{"Counter"}}},
		}),
	}))
	p, ok := b.pointer()
	if !ok || p.Script != scriptName || p.Version != r.Version || strings.Trim(p.Prefix, "/") != strings.Trim(versionPrefix(r.Version), "/") ||
		p.Rollout.Percent == nil || *p.Rollout.Percent != 100 {
		b.Errorf("pointer %+v", p)
	}
	if _, ok := b.object("deploy/" + scriptName + "/current.json"); !ok {
		b.Error("the script has no current.json of its own")
	}
	for _, name := range []string{"manifest.json", "assets.json"} {
		if _, ok := b.object(versionPrefix(r.Version) + name); !ok {
			b.Errorf("no %s under %s", name, versionPrefix(r.Version))
		}
	}
	sum := sha256.Sum256([]byte(asset))
	digest := hex.EncodeToString(sum[:])
	if body, ok := b.object("deploy-blobs/assets/sha256/" + digest[:2] + "/" + digest); !ok || string(body) != asset {
		b.Errorf("the asset is not at its digest; %q", b.keys("deploy-blobs/"))
	}
	b.checkManifest(r.Version)
}

// checkManifest holds the manifest to what lies beside it.
func (b *bench) checkManifest(version string) {
	b.Helper()
	body, _ := b.object(versionPrefix(version) + "manifest.json")
	var m struct {
		Modules []struct {
			Name   string `json:"name"`
			Bytes  int    `json:"bytes"`
			SHA256 string `json:"sha256"`
		} `json:"modules"`
	}
	if err := json.Unmarshal(body, &m); err != nil || len(m.Modules) == 0 {
		b.Fatalf("manifest: %v\n%s", err, body)
	}
	for _, mod := range m.Modules {
		if mod.Name == "" || mod.Bytes <= 0 || len(mod.SHA256) != 2*sha256.Size {
			b.Errorf("module %+v", mod)
		}
		found := slices.ContainsFunc(b.keys(versionPrefix(version)), func(key string) bool {
			body, _ := b.object(key)
			sum := sha256.Sum256(body)
			return hex.EncodeToString(sum[:]) == strings.ToLower(mod.SHA256) && len(body) == mod.Bytes
		})
		if !found {
			b.Errorf("no object has the bytes of module %q", mod.Name)
		}
	}
}

// What a pointer names is there before the pointer, which is moved last and by
// compare-and-swap.
func testDeployOrder(b *bench) {
	project := subject("one").with(files{"public/a.txt": "a", "wrangler.jsonc": strings.Replace(subject("one")["wrangler.jsonc"], `"vars"`, `"assets": { "directory": "public" }, "vars"`, 1)})
	b.deploy(project)
	first := b.proxy.writes()
	b.deploy(project.with(files{"src/release.js": `export const release = "two";`, "public/b.txt": "b"}))
	second := b.proxy.writes()[len(first):]
	for name, writes := range map[string][]request{"the first": first, "the second": second} {
		stage := 0
		for _, w := range writes {
			_, key, _ := strings.Cut(w.path, b.prefix+"/")
			at := 0
			switch {
			case key == pointerKey:
				at = 3
			case key == "deploy/"+scriptName+"/current.json":
				at = 2
			case strings.HasPrefix(key, "deploy/"):
				at = 1
			case !strings.HasPrefix(key, "deploy-blobs/"):
				continue
			}
			if at < stage {
				b.Errorf("%s deploy writes %s too late", name, key)
			}
			stage = max(stage, at)
		}
		last := writes[len(writes)-1]
		if !last.pointer() || last.ifMatch == "" && last.ifNone == "" {
			b.Errorf("%s deploy ends with %s %s, If-Match %q, If-None-Match %q", name, last.method, last.path, last.ifMatch, last.ifNone)
		}
	}
	if last := first[len(first)-1]; last.ifNone != "*" {
		b.Errorf("the first pointer is created with If-None-Match %q", last.ifNone)
	}
	if last := second[len(second)-1]; last.ifMatch == "" {
		b.Error("the second pointer is not replaced with If-Match")
	}
}

func testDeployDryRun(b *bench) {
	project := b.project(plain(hello))
	dry := b.published(b.command(b.deployEnv(), b.deployArgs(project, true)...))
	if !dry.DryRun {
		b.Errorf("%+v", dry)
	}
	if keys := b.keys(""); len(keys) > 0 {
		b.Errorf("a dry run wrote %q", keys)
	}
	if real := b.published(b.command(b.deployEnv(), b.deployArgs(project, false)...)); real.Version != dry.Version {
		b.Errorf("the dry run said %s, the deploy %s", dry.Version, real.Version)
	}
}

func testDeployVersion(b *bench) {
	one := b.deploy(subject("one"))
	seen := map[string]string{one.Version: "the first"}
	if again := b.deploy(subject("one")); again.Version != one.Version {
		b.Errorf("the same content is %s, then %s", one.Version, again.Version)
	}
	for name, change := range map[string]files{
		"another module": {"src/release.js": `export const release = "other";`},
		"another var":    {"wrangler.jsonc": strings.Replace(subject("one")["wrangler.jsonc"], "hello from", "bye from", 1)},
		"an asset": {
			"wrangler.jsonc":    strings.Replace(subject("one")["wrangler.jsonc"], `"vars"`, `"assets": { "directory": "public" }, "vars"`, 1),
			"public/index.html": "x",
		},
	} {
		v := b.deploy(subject("one").with(change)).Version
		if other, ok := seen[v]; ok {
			b.Errorf("%s has the version of %s", name, other)
		}
		seen[v] = name
	}
	if back := b.deploy(subject("one")); back.Version != one.Version {
		b.Errorf("back to the first content: %s", back.Version)
	}
	b.names(one.Version)
}

func testDeployConfiguration(b *bench) {
	code := files{"index.js": hello}
	jsonc := b.deploy(plain(hello)).Version
	if v := b.deploy(code.with(files{"wrangler.json": config(nil)})).Version; v != jsonc {
		b.Errorf("wrangler.json gives %s, wrangler.jsonc %s", v, jsonc)
	}
	other := strings.Replace(config(nil), `"main"`, `"vars": {"A": "b"}, "main"`, 1)
	both := code.with(files{"wrangler.jsonc": config(nil), "wrangler.json": other})
	if v := b.deploy(both).Version; v != jsonc {
		b.Error("wrangler.json is read before wrangler.jsonc")
	}
	// A configuration file can be named, and the project may be where one stands.
	dir := b.project(code.with(files{"wrangler.jsonc": config(nil), "other.json": other}))
	named := b.published(b.command(b.deployEnv(), b.deployArgs(filepath.Join(dir, "other.json"), false)...))
	if named.Version == jsonc {
		b.Error("the named file is not read")
	}
	args := slices.DeleteFunc(b.deployArgs(dir, false), func(a string) bool { return a == dir })
	if here := b.published(b.commandIn(dir, b.deployEnv(), args...)); here.Version != jsonc {
		b.Errorf("from inside the project: %s", here.Version)
	}
}

func testDeployRefusals(b *bench) {
	good := b.deploy(plain(hello))
	refused := func(name string, f files, words ...string) {
		b.expectNamed(name, b.tryDeploy(f), append(words, "Error")...)
	}
	for _, key := range []string{"env", "routes", "observability", "limits", "placement", "no_such_key"} {
		refused("the key "+key, plain(hello).with(files{"wrangler.jsonc": config(map[string]any{key: map[string]any{}})}), key)
	}
	refused("no configuration", files{"index.js": hello})
	refused("a configuration that is cut off", plain(hello).with(files{"wrangler.jsonc": `{ "name": "subject", `}))
	refused("no main and no assets", plain(hello).with(files{"wrangler.jsonc": config(map[string]any{"main": nil})}))
	refused("a main that is missing", plain(hello).with(files{"wrangler.jsonc": config(map[string]any{"main": "gone.js"})}), "gone.js")
	refused("a syntax error", plain("export default {\n  fetch() { return new Response(; }\n}"), "index.js", "2")
	refused("an import that is missing", plain("import x from './gone.js'; export default { fetch() { return new Response(x) } }"), "gone.js")
	b.expectNamed("no such folder", b.command(b.deployEnv(), b.deployArgs(filepath.Join(b.dir, "nowhere"), false)...))
	b.names(good.Version)
	b.proxy.set(vanished)
	refused("a store that is away", plain(helloSays("two")))
	b.proxy.set(passing)
	b.names(good.Version)
}

// The deploy that read the pointer before another one moved it is refused by the
// store, says to run again, and takes nothing back.
func testDeployLosesARace(b *bench) {
	b.deploy(plain(hello))
	slow, fast := b.project(plain(helloSays("slow"))), b.project(plain(helloSays("fast")))
	arrived, winner := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.proxy.onRequest(func(q *request) {
		if !q.pointer() {
			return
		}
		first := false
		once.Do(func() { first = true })
		if first { // the slow one's write waits until the fast one's is done
			close(arrived)
			select {
			case <-winner:
			case <-q.ctx.Done():
			}
		}
	})
	type outcome struct {
		f   finished
		err error
	}
	lost := make(chan outcome, 1)
	go func() {
		f, err := b.tryCommand("", b.deployEnv(), b.deployArgs(slow, false)...)
		lost <- outcome{f, err}
	}()
	<-arrived
	won := b.published(b.command(b.deployEnv(), b.deployArgs(fast, false)...))
	close(winner)
	o := <-lost
	if o.err != nil {
		b.Fatal(o.err)
	}
	b.expectFailure(o.f, "again")
	b.names(won.Version)
	b.proxy.onRequest(nil)
	again := b.published(b.command(b.deployEnv(), b.deployArgs(slow, false)...))
	b.names(again.Version)
}

func testDeploysAtOnce(b *bench) {
	const deploys = 4
	var group sync.WaitGroup
	results := make([]finished, deploys)
	errs := make([]error, deploys)
	projects := make([]string, deploys)
	for i := range deploys {
		projects[i] = b.project(plain(helloSays(fmt.Sprint("racer ", i))))
	}
	for i := range deploys {
		group.Go(func() { results[i], errs[i] = b.tryCommand("", b.deployEnv(), b.deployArgs(projects[i], false)...) })
	}
	group.Wait()
	var versions []string
	for i, f := range results {
		switch {
		case errs[i] != nil:
			b.Error(errs[i])
		case f.code == 0:
			versions = append(versions, b.published(f).Version)
		default:
			b.expectFailure(f)
		}
	}
	p, _ := b.pointer()
	if !slices.Contains(versions, p.Version) {
		b.Fatalf("the pointer names %q; successful were %q", p.Version, versions)
	}
	b.checkManifest(p.Version)
	r := b.serve("n1")
	if got := r.get("/"); !strings.HasPrefix(got, "racer ") {
		b.Errorf("it serves %q", got)
	}
}

// The store writes the pointer and its answer is lost: the deploy must not call
// that a failure that changed nothing, and running again must do.
func testDeployWithoutAnAnswer(b *bench) {
	b.deploy(plain(hello))
	var once sync.Once
	b.proxy.onRequest(func(q *request) {
		if q.pointer() {
			once.Do(func() { q.loseAnswer = true })
		}
	})
	project := b.project(plain(helloSays("two")))
	f := b.command(b.deployEnv(), b.deployArgs(project, false)...)
	switch f.code {
	case 0:
		b.names(b.published(f).Version)
	case celld.ExitFailed:
		if !strings.Contains(strings.ToLower(f.stderr), "may have committed") {
			b.Errorf("it does not say that it may have committed: %q", f.stderr)
		}
	default:
		b.Errorf("exit code %d", f.code)
	}
	before, _ := b.object(pointerKey)
	again := b.published(b.command(b.deployEnv(), b.deployArgs(project, false)...))
	b.names(again.Version)
	if after, _ := b.object(pointerKey); f.code == 0 && !bytes.Contains(after, []byte(again.Version)) {
		b.Errorf("pointer %s, then %s", before, after)
	}
}
