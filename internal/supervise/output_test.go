package supervise

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/applog"
)

// Where an operator opens private networks to Workers, the machines of the fleet are
// named to the runtime as closed, beside what the operator closes.
func TestTheFleetStaysClosedToWorkers(t *testing.T) {
	fleet := func() []string { return []string{"10.0.0.1", "n2.example"} }
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"no switch":    {map[string]string{}, ""},
		"open":         {map[string]string{envPrivateNetworks: "10.0.0.0/8"}, "10.0.0.1,n2.example"},
		"open, closed": {map[string]string{envPrivateNetworks: "10.0.0.0/8", envDeny: "10.9.0.0/16"}, "10.9.0.0/16,10.0.0.1,n2.example"},
	} {
		s := &Supervisor{cfg: Config{Env: c.env, Fleet: fleet}}
		before := c.env[envDeny]
		if got := s.extra()[envDeny]; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.env[envDeny] != before {
			t.Errorf("%s: the operator's own variables were changed", name)
		}
	}
}

// What becomes of a process is in the application's log, and a crash can be told from
// a stop that was asked for.
func TestTheLogTellsOfTheProcess(t *testing.T) {
	dir := t.TempDir()
	logs, err := applog.NewStore(filepath.Join(dir, "logs"), applog.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	s := &Supervisor{cfg: Config{StateDir: dir, Logs: logs}}
	p := &process{s: s, app: "shop", uid: "u1", kept: logs.Log("shop", "u1")}
	tell := func(before, after phase, e event) {
		p.m.phase, p.m.notBefore = after, time.Now().Add(time.Second)
		p.tell(before, e)
	}
	killed := exit{}
	killed.Signal = "SIGKILL"
	tell(phaseStarting, phaseReady, event{kind: evState})
	tell(phaseReady, phaseReady, event{kind: evProbed}) // nothing to tell
	tell(phaseReady, phaseOut, event{kind: evProbed})
	tell(phaseOut, phaseKilled, event{kind: evProbed})
	tell(phaseKilled, phaseWaiting, event{kind: evExited, exit: killed})
	tell(phaseLaunch, phaseWaiting, event{kind: evStartFailed, err: errors.New("no such file")})
	tell(phaseStopping, phaseEnded, event{kind: evExited, exit: exit{}})
	r, err := applog.Open(filepath.Join(dir, "logs"), "shop")
	if err != nil {
		t.Fatal(err)
	}
	var got []applog.Entry
	if err := r.Read(time.Time{}, func(e applog.Entry) error { got = append(got, e); return nil }); err != nil {
		t.Fatal(err)
	}
	want := []applog.Entry{
		{Level: applog.Info, Event: applog.Ready, Message: "the runtime is ready"},
		{Level: applog.Warn, Message: "the runtime does not answer: it is taken out of the routes"},
		{Level: applog.Warn, Message: "the runtime does not answer: it is killed"},
		{Level: applog.Error, Event: applog.Crash, Message: "the runtime ended with signal SIGKILL and is started again in 1s"},
		{Level: applog.Error, Event: applog.Crash, Message: "the runtime could not be started: no such file"},
		{Level: applog.Info, Event: applog.Stopped, Message: "the runtime has stopped"},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, e := range got {
		e.Time = time.Time{}
		want[i].Source = applog.Node
		if e != want[i] {
			t.Errorf("%+v, want %+v", e, want[i])
		}
	}
}
