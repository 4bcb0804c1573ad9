package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
)

// SilentAfter is how long a node may give no answer before a deploy no longer
// waits for it.
const SilentAfter = 10 * time.Second

// Truth is what a node itself last said of its process of an application.
type Truth struct {
	// Live is whether the node counts as alive.
	Live bool
	// Heard is whether it answered at all since the deploy began to wait, and
	// Silent how long ago that was, or how long it has been asked in vain.
	Heard  bool
	Silent time.Duration
	// Process is nil when it runs none.
	Process *scafo.ProcessStatus
}

// Settling is a deploy whose version is published and recorded.
type Settling struct {
	Application scafo.Application // as it is now
	UID         string            // the life that the deploy is of
	Seq         int64
	Version     string
	Placement   *scafo.Placement // the one in force; nil when there is none
	Truths      map[string]Truth // by node
}

// StepPlacement is the step of a deploy that no coordinator has placed yet.
const StepPlacement = "placement"

// Outcome is how a deploy stands.
type Outcome int

// The outcomes.
const (
	Waiting Outcome = iota
	Deployed
	Failed
)

// Verdict is how a deploy stands, and why.
type Verdict struct {
	Outcome Outcome
	// Step says in a few words what a waiting deploy waits for.
	Step string
	// Node and Detail name the node that refused, and its runtime's sentence.
	Node   string
	Detail string
	// Nodes is each placed node's part, in the order of the placement.
	Nodes []scafo.DeployNode
}

// Verdict judges the deploy by what the nodes themselves said. It is deployed
// when every live placed node that is not silent serves the version and one at
// least does, failed as soon as one refuses it. What nothing can take, or nobody
// is to serve, is deployed once recorded. Where all placed nodes are gone, it is for
// the coordinator to say whether another takes the application over: until the
// placement names one, or a reason why there is none, the deploy waits.
func (s Settling) Verdict() Verdict {
	app := s.Application
	if app.UID != s.UID || app.Deleting != nil {
		return Verdict{Outcome: Failed, Detail: "the application was deleted"}
	}
	if app.Retired != nil || app.Blocked != nil {
		return Verdict{Outcome: Deployed}
	}
	if s.Placement == nil || s.Placement.UID != s.UID || s.Placement.DeploySeq < s.Seq {
		return Verdict{Step: StepPlacement}
	}
	v := Verdict{Outcome: Deployed}
	live, verified := 0, 0
	var waits []string
	for _, id := range s.Placement.Nodes {
		t := s.Truths[id]
		if !t.Live {
			v.Nodes = append(v.Nodes, scafo.DeployNode{Node: id, Detail: "the node is gone"})
			continue
		}
		live++
		n, st := s.judge(id, t)
		v.Nodes = append(v.Nodes, n)
		switch st {
		case standRefused:
			if v.Outcome != Failed {
				v.Outcome, v.Node, v.Detail = Failed, id, n.Detail
			}
		case standServes:
			verified++
		case standLags:
			waits = append(waits, id)
		}
	}
	switch {
	case v.Outcome == Failed:
	case live == 0 && len(s.Placement.Nodes) > 0 && s.Placement.Reason == "":
		v.Outcome, v.Step = Waiting, StepPlacement
	case live == 0:
	case len(waits) > 0:
		v.Outcome, v.Step = Waiting, "ready on "+strings.Join(waits, ", ")
	case verified == 0:
		v.Outcome, v.Step = Waiting, "an answer of "+strings.Join(liveOf(s), ", ")
	}
	return v
}

func liveOf(s Settling) []string {
	return slices.DeleteFunc(slices.Clone(s.Placement.Nodes), func(id string) bool { return !s.Truths[id].Live })
}

type standing int

const (
	standServes standing = iota
	standLags
	standRefused
	standSilent
)

// judge is one live node's part.
func (s Settling) judge(id string, t Truth) (scafo.DeployNode, standing) {
	n := scafo.DeployNode{Node: id}
	if !t.Heard || t.Silent >= SilentAfter {
		n.Detail = "the node has not answered yet"
		if t.Silent >= SilentAfter {
			n.Detail = fmt.Sprintf("the node has not answered for %d seconds", int(SilentAfter/time.Second))
			return n, standSilent
		}
		return n, standLags
	}
	p := t.Process
	if p == nil {
		n.Detail = "the node has not started it yet"
		return n, standLags
	}
	n.Version = p.Deployment
	if r := p.Refused; r != nil && r.Version == s.Version {
		n.Detail = r.Detail
		return n, standRefused
	}
	if crashedOn(p, s.Version) {
		n.Detail = sentence(p.LastLines)
		return n, standRefused
	}
	switch {
	case p.State == scafo.ProcessReady && p.Deployment == s.Version:
		return n, standServes
	case p.State == scafo.ProcessReady && p.Deployment == "":
		n.Detail = "the process has not said what it serves"
	case p.State == scafo.ProcessReady:
		n.Detail = "the process still serves " + p.Deployment
	case p.WaitsForLease():
		n.Detail = "the process starts once the lease of the last one is over"
	case p.State == scafo.ProcessBackoff:
		n.Detail = "the process crashed and waits for its next start"
	default:
		n.Detail = "the process is " + string(p.State)
	}
	return n, standLags
}

// exitStartup is the exit code of a runtime that could not start: its
// configuration, its command line, or the deployment that it found.
const exitStartup = 1

// crashedOn is whether the process waits for its next start after it could not
// start onto the version. The exit of a process that was started before the version
// was wanted is not held against it.
func crashedOn(p *scafo.ProcessStatus, version string) bool {
	return p.State == scafo.ProcessBackoff && p.Wanted == version &&
		p.LastExit != nil && p.LastExit.Signal == "" && p.LastExit.Code == exitStartup &&
		(p.LastExit.Version == version || p.LastExit.Version == "")
}

// sentence is what a runtime said before it ended: the last line that calls itself
// an error, or else the last one.
func sentence(lines []string) string {
	last := ""
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Error") || strings.HasPrefix(line, "error") {
			return line
		}
		if last == "" {
			last = line
		}
	}
	if last == "" {
		return "the runtime could not start, and said nothing"
	}
	return last
}

// Answered is whether a process has come to its end with a version: it serves it,
// or it refuses it.
func Answered(p scafo.ProcessStatus, version string) bool {
	return p.State == scafo.ProcessReady && p.Deployment == version ||
		p.Refused != nil && p.Refused.Version == version || crashedOn(&p, version)
}
