package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/token/keyfile"
)

func TestOperatorsCommands(t *testing.T) {
	f := newTestFleet(t)
	// A key made here stays here.
	path := filepath.Join(f.dir, "ci.jwk")
	out := f.must("operators", "add", "ci", "--applications", "shop,shop-*", "--new-key", path)
	if !strings.Contains(out, "operator ci is trusted for shop, shop-*") || !strings.Contains(out, path) {
		t.Error(out)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	k, _, err := keyfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	// Again is no failure, and the same key.
	f.must("operators", "add", "ci", "--applications", "shop,shop-*", "--new-key", path)
	if again, _, err := keyfile.Load(path); err != nil || !again.Private.Equal(k.Private) {
		t.Errorf("the key is another one: %v", err)
	}
	if out := f.must("operators", "list"); !strings.Contains(out, "ci") || !strings.Contains(out, "shop,shop-*") || !strings.Contains(out, "root") {
		t.Error(out)
	}
	if out, err := f.scafo(path, "operators", "list", "--json"); err != nil || object(t, out)["scoped"] != true || strings.Contains(out, `"root",`) && strings.Count(out, `"id"`) != 1 {
		t.Error(out, err)
	}
	// A key made elsewhere: its private half is nowhere here.
	there := filepath.Join(f.dir, "elsewhere", "alice.jwk")
	root := newRoot()
	var public bytes.Buffer
	root.SetOut(&public)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs([]string{"operators", "key", "alice", "--new-key", there})
	if err := root.ExecuteContext(t.Context()); err != nil || strings.Contains(public.String(), `"d"`) {
		t.Fatal(public.String(), err)
	}
	file := filepath.Join(f.dir, "alice.json")
	if err := os.WriteFile(file, public.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f.must("operators", "add", "alice", "--applications", "*", "--role", "admin", "--public-key", file)
	if _, err := f.scafo(there, "apps", "list"); err != nil {
		t.Error(err)
	}
	f.wantUsage("operators", "add", "bob", "--applications", "*", "--public-key", file)
	if _, err := f.scafo(f.key, "operators", "add", "alice2", "--applications", "*", "--public-key", there); err == nil || !strings.Contains(err.Error(), "private key") {
		t.Errorf("a private key was taken: %v", err)
	}
	for _, args := range [][]string{
		{"operators", "add", "x"}, {"operators", "add", "Not-An-Id", "--applications", "*"}, {"operators", "add", "x", "--applications", "*,shop"},
		{"operators", "add", "x", "--applications", "sh*op"}, {"operators", "add", "x", "--applications", "*", "--role", "root"}, {"operators", "remove"},
		{"operators", "remove", "Not-An-Id"}, {"operators", "add", "other", "--applications", "*", "--new-key", path},
	} {
		f.wantUsage(args...)
	}
	// A refused registration leaves no key behind.
	left := filepath.Join(f.dir, "wide.jwk")
	if _, err := f.scafo(path, "operators", "add", "wide", "--applications", "other", "--new-key", left); scafo.CodeOf(err) != scafo.CodeAuthScope {
		t.Error(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("a key that nobody knows is left: %v", err)
	}
	f.must("operators", "remove", "ci")
	if _, err := f.scafo(path, "apps", "list"); scafo.CodeOf(err) != scafo.CodeAuthInvalid {
		t.Error(err)
	}
	if _, err := f.scafo(f.key, "operators", "remove", "root"); scafo.CodeOf(err) != scafo.CodeInvalidInput {
		t.Errorf("its own key: %v", err)
	}
}

// asKey is a client over a network that may lose a call.
func (f *testFleet) asKey(k keyfile.Key, network *flaky) (operatorCalls, error) {
	sign := func(context.Context) (string, error) { return k.Token(time.Now()) }
	return client.New(client.Config{URLs: []string{"http://node"}, Transport: network, Credential: client.CredentialFunc(sign)})
}

// cut is a rotation that is cut short: at a call, before the node saw it or after.
type cut struct {
	at    int
	after bool
}

func (f *testFleet) rotate(path string, at cut) (rotated, error) {
	network := &flaky{next: f, at: at.at, after: at.after}
	r := rotation{path: path, call: func(k keyfile.Key) (operatorCalls, error) { return f.asKey(k, network) }}
	return r.run(context.Background())
}

// Rotation, cut short at each of its calls, before and after the node saw it, and
// its repetition as well: the file always holds a key that works, and in the end
// it is the only one of its line.
func TestRotationsThatAreCutShort(t *testing.T) {
	var cuts []cut
	for at := 1; at <= 5; at++ {
		cuts = append(cuts, cut{at, false}, cut{at, true})
	}
	for _, role := range []scafo.Role{scafo.RoleAdmin, scafo.RoleOperator} {
		for _, first := range cuts {
			for _, second := range append([]cut{{}}, cuts...) {
				t.Run(fmt.Sprintf("%s/%v/%v", role, first, second), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newTestFleet(t)
						path := f.operator("op", role)
						for _, c := range []cut{first, second, {}} {
							if _, err := f.rotate(path, c); c.at == 0 && err != nil {
								t.Fatal(err)
							}
							f.works(path)
						}
						f.onlyOneOf("op", role, path)
					})
				})
			}
		}
	}
}

// operator makes a key file and has the fleet trust it.
func (f *testFleet) operator(id string, role scafo.Role) (path string) {
	f.t.Helper()
	k, err := keyfile.New(id)
	if err != nil {
		f.t.Fatal(err)
	}
	path = filepath.Join(f.dir, id+".jwk")
	if err := keyfile.Save(path, k); err != nil {
		f.t.Fatal(err)
	}
	if _, _, err := f.registry.AddOperator(f.t.Context(), scafo.Operator{ID: id, PublicKey: k.Public(), Role: role, Applications: scafo.Scope{"shop-*"}}); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *testFleet) works(path string) {
	f.t.Helper()
	k, _, err := keyfile.Load(path)
	if err != nil {
		f.t.Fatal(err)
	}
	calls, err := f.asKey(k, &flaky{next: f})
	if err == nil {
		_, err = calls.Operators(f.t.Context())
	}
	if err != nil {
		f.t.Fatalf("the key file does not work: %v", err)
	}
}

// onlyOneOf checks that of the keys that came from one, the file's is left.
func (f *testFleet) onlyOneOf(id string, role scafo.Role, path string) {
	f.t.Helper()
	k, others, err := keyfile.Load(path)
	if err != nil || others || k.ID == id {
		f.t.Fatalf("%s, %v, %v", k.ID, others, err)
	}
	all, err := f.registry.Operators(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, op := range all {
		if op.ID != id && !strings.HasPrefix(op.ID, id+"-") {
			continue
		}
		if op.ID != k.ID || op.Role != role || op.Applications[0] != "shop-*" {
			f.t.Errorf("%+v is left beside %s", op, k.ID)
		}
	}
	if _, err := os.Stat(path + nextSuffix); !os.IsNotExist(err) {
		f.t.Errorf("%s is left", path+nextSuffix)
	}
}

// Two rotations of one key file at once are one rotation, or two in a row.
func TestRotationsAtOnce(t *testing.T) {
	for round := range 20 {
		f := newTestFleet(t)
		id := fmt.Sprint("op", round)
		path := filepath.Join(f.dir, id+".jwk")
		f.must("operators", "add", id, "--applications", "shop-*", "--new-key", path)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _, _ = f.rotate(path, cut{}) })
		}
		wg.Wait()
		f.works(path)
		if _, err := f.rotate(path, cut{}); err != nil {
			t.Fatal(err)
		}
		f.onlyOneOf(id, scafo.RoleOperator, path)
	}
}

func TestRotateCommand(t *testing.T) {
	f := newTestFleet(t)
	out := f.must("operators", "rotate", "--id", "root-2")
	if !strings.Contains(out, "root-2 replaces root, which is revoked") {
		t.Error(out)
	}
	if info, err := os.Stat(f.key); err != nil || info.Mode().Perm() != fs.FileMode(0o600) {
		t.Errorf("%v %v", info, err)
	}
	all, err := f.registry.Operators(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "root-2" || all[0].Role != scafo.RoleAdmin || !all[0].Applications.All() || all[0].Supersedes != "root" {
		t.Errorf("%+v %v", all, err)
	}
	// A refused id leaves the key as it was.
	f.must("operators", "add", "ci", "--applications", "*", "--new-key", filepath.Join(f.dir, "ci.jwk"))
	if _, err := f.scafo(f.key, "operators", "rotate", "--id", "ci"); scafo.CodeOf(err) != scafo.CodeReferenceHeld {
		t.Error(err)
	}
	if k, _, err := keyfile.Load(f.key); err != nil || k.ID != "root-2" {
		t.Error(k.ID, err)
	}
	if _, err := os.Stat(f.key + nextSuffix); !os.IsNotExist(err) {
		t.Error("the refused key is left")
	}
	f.wantUsage("operators", "rotate", "--id", "Not-An-Id")
	if out := object(t, f.must("operators", "rotate", "--json")); !strings.HasPrefix(out["operator"].(string), "root-2-") || out["replaced"] != "root-2" {
		t.Error(out)
	}
	// The next one drops the random ending, so that ids do not grow.
	if out := object(t, f.must("operators", "rotate", "--json")); len(out["operator"].(string)) != len("root-2-0a1b2c") {
		t.Error(out)
	}
}

func TestSuccessor(t *testing.T) {
	long := strings.Repeat("a", scafo.MaxNameLength)
	for _, id := range []string{"a", "root", "root-0a1b2c", long, strings.Repeat("a-", 31) + "a"} {
		for range 50 {
			if next := successor(id); !scafo.ValidName(next) || next == id {
				t.Errorf("%s → %s", id, next)
			}
		}
	}
}
