package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/client"
	"github.com/scafo/scafo/internal/cost"
	"github.com/scafo/scafo/internal/profile"
)

const (
	// costAsks is how many machines are asked at once, and costTimeout how long one may
	// take.
	costAsks    = 16
	costTimeout = 10 * time.Second
)

// costReport is what `status --cost` says.
type costReport struct {
	Nodes     []costNode    `json:"nodes"`
	Unreached []costMissing `json:"unreached"`
	// Purposes and Own are a month's requests of scafo's own, at the rate of the time
	// that the nodes looked back on.
	Purposes []costLine `json:"purposes"`
	Own      costLine   `json:"own"`
	// Runtimes is what the processes ask for at most while nobody asks them anything.
	Runtimes  costLine `json:"runtimes"`
	Processes int      `json:"processes"`
	Prices    []price  `json:"prices"`
}

type costNode struct {
	Node     string                 `json:"node"`
	Seconds  float64                `json:"seconds"`
	Starting bool                   `json:"starting,omitempty"`
	Requests []scafo.BucketRequests `json:"requests"`
}

type costMissing struct {
	Node    string `json:"node,omitempty"`
	Address string `json:"address,omitempty"`
	Error   string `json:"error"`
}

type costLine struct {
	Purpose string `json:"purpose,omitempty"`
	cost.Requests
	S3 float64 `json:"s3Dollars"`
	R2 float64 `json:"r2Dollars"`
}

type price struct {
	Store            string  `json:"store"`
	WritesPerMillion float64 `json:"writesPerMillion"`
	ReadsPerMillion  float64 `json:"readsPerMillion"`
	Source           string  `json:"source"`
	AsOf             string  `json:"asOf"`
}

// runCost asks every machine that it can learn of and prints what they cost.
func runCost(c *cobra.Command, g *globals) error {
	f, err := g.target()
	if err != nil {
		return err
	}
	k, err := loadKey(f.Key)
	if err != nil {
		return err
	}
	if len(f.Nodes) == 0 {
		_, _, err := g.client() // it says what is missing
		return err
	}
	credential := client.CredentialFunc(func(context.Context) (string, error) { return k.Token(time.Now()) })
	states, missing, err := askAll(c.Context(), f, credential)
	if err != nil {
		return err
	}
	r := reckon(states, missing)
	if g.json {
		return printJSON(c.OutOrStdout(), r)
	}
	return r.show(c.OutOrStdout())
}

// askAll asks the machines of the profile, and then those of which they know.
func askAll(ctx context.Context, f profile.Fleet, credential client.Credential) ([]scafo.DaemonState, []costMissing, error) {
	var (
		mu      sync.Mutex
		states  []scafo.DaemonState // guarded by mu
		missing []costMissing       // guarded by mu
		last    error               // guarded by mu
	)
	ask := func(list []costMissing) {
		var asking errgroup.Group
		asking.SetLimit(costAsks)
		for _, m := range list {
			asking.Go(func() error {
				s, err := stateAt(ctx, m.Address, credential)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					m.Error, last = err.Error(), err
					missing = append(missing, m)
					return nil
				}
				states = append(states, s)
				return nil
			})
		}
		_ = asking.Wait() // no function returns one
	}
	first := make([]costMissing, 0, len(f.Nodes))
	for _, u := range f.Nodes {
		first = append(first, costMissing{Address: u})
	}
	ask(first)
	if len(states) == 0 {
		return nil, nil, last
	}
	heard := map[string]bool{}
	states = slices.DeleteFunc(states, func(s scafo.DaemonState) bool {
		id := ""
		if s.Node != nil {
			id = s.Node.ID
		}
		again := heard[id] // a node by two addresses
		heard[id] = true
		return again
	})
	rest, addressed := []costMissing{}, map[string]bool{}
	if !slices.ContainsFunc(states, tellsCost) {
		return nil, nil, errNoCost(states[0])
	}
	for _, s := range states {
		if !tellsCost(s) {
			continue
		}
		for _, n := range s.Bucket.Nodes {
			addressed[n.Address] = true
			if !heard[n.Node] {
				heard[n.Node] = true
				rest = append(rest, costMissing{Node: n.Node, Address: n.Address})
			}
		}
	}
	// A machine of the profile that did not answer is counted once, and not at all when
	// its own address did.
	missing = slices.DeleteFunc(missing, func(m costMissing) bool { return addressed[m.Address] })
	ask(rest)
	for _, s := range states {
		if !tellsCost(s) {
			missing = append(missing, costMissing{Node: nodeOf(s), Error: errNoCost(s).Error()})
		}
	}
	states = slices.DeleteFunc(states, func(s scafo.DaemonState) bool { return !tellsCost(s) })
	slices.SortFunc(states, func(a, b scafo.DaemonState) int { return strings.Compare(nodeOf(a), nodeOf(b)) })
	slices.SortFunc(missing, func(a, b costMissing) int { return strings.Compare(a.Node+a.Address, b.Node+b.Address) })
	return states, missing, nil
}

func tellsCost(s scafo.DaemonState) bool { return s.Bucket != nil }

func errNoCost(s scafo.DaemonState) error {
	if s.Scoped {
		return scafo.Errorf(scafo.CodeAuthScope, "only an admin's key is told what the fleet costs")
	}
	return scafo.Errorf(scafo.CodeNotFound, "node %s does not tell its bucket requests: it runs an older scafo", nodeOf(s))
}

func nodeOf(s scafo.DaemonState) string {
	if s.Node == nil {
		return ""
	}
	return s.Node.ID
}

func stateAt(ctx context.Context, url string, credential client.Credential) (scafo.DaemonState, error) {
	ctx, cancel := context.WithTimeout(ctx, costTimeout)
	defer cancel()
	cl, err := client.New(client.Config{URLs: []string{url}, Credential: credential})
	if err != nil {
		return scafo.DaemonState{}, usageError{err}
	}
	defer cl.Close()
	return cl.State(ctx)
}

// reckon turns what the machines said into a month's requests and money.
func reckon(states []scafo.DaemonState, missing []costMissing) costReport {
	r := costReport{Nodes: []costNode{}, Unreached: append([]costMissing{}, missing...), Purposes: []costLine{}}
	purposes := map[string]cost.Requests{}
	var own, runtimes cost.Requests
	for _, s := range states {
		n := costNode{Node: nodeOf(s), Seconds: s.Bucket.Seconds, Starting: s.Bucket.Starting, Requests: s.Bucket.Requests}
		r.Nodes = append(r.Nodes, n)
		for _, q := range n.Requests {
			month := cost.Of([]scafo.BucketRequests{q}).Times(cost.Month / max(n.Seconds, 1))
			purposes[q.Purpose] = purposes[q.Purpose].Plus(month)
			own = own.Plus(month)
		}
		for _, p := range s.Processes {
			if p.PID != 0 {
				r.Processes++
				runtimes = runtimes.Plus(cost.Idle(p.CelldVersion, cost.Month))
			}
		}
	}
	for name, q := range purposes {
		r.Purposes = append(r.Purposes, lineOf(name, q))
	}
	slices.SortFunc(r.Purposes, func(a, b costLine) int {
		if a.S3 != b.S3 {
			if a.S3 > b.S3 {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Purpose, b.Purpose)
	})
	r.Own, r.Runtimes = lineOf("", own), lineOf("", runtimes)
	for _, p := range []cost.Prices{cost.S3, cost.R2} {
		r.Prices = append(r.Prices, price{p.Name, p.Writes, p.Reads, p.Source, p.AsOf})
	}
	return r
}

func lineOf(purpose string, r cost.Requests) costLine {
	return costLine{Purpose: purpose, Requests: r, S3: cost.S3.Dollars(r), R2: cost.R2.Dollars(r)}
}

func (r costReport) show(w io.Writer) error {
	fmt.Fprintf(w, "Bucket requests in a month of 30 days, at the rate of %s:\n\n", r.looksBack())
	err := table(w, "FOR\tWRITES, LISTS\tREADS\tS3\tR2", func(row func(string, ...any)) {
		line := func(name string, l costLine) {
			row("%s\t%.0f\t%.0f\t$%.2f\t$%.2f", name, l.Writes, l.Reads, l.S3, l.R2)
		}
		for _, l := range r.Purposes {
			line(l.Purpose, l)
		}
		line("scafo's own", r.Own)
		line(fmt.Sprintf("runtimes (%d), at most", r.Processes), r.Runtimes)
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, m := range r.Unreached {
		name := m.Node
		if name == "" {
			name = m.Address
		}
		fmt.Fprintf(w, "not in the sum: %s (%s)\n", name, oneLine(m.Error))
	}
	if slices.ContainsFunc(r.Nodes, func(n costNode) bool { return n.Starting }) {
		fmt.Fprintln(w, "Too early to tell: a node started within the last minute, and asks more at its start than later.")
	}
	fmt.Fprintln(w, "The runtimes' share is not measured: it is what idle processes that keep something in the\nbucket ask for; celld-workerd asks for nothing where an application keeps nothing.")
	for _, p := range r.Prices {
		fmt.Fprintf(w, "%s: $%.2f a million writes and listings, $%.2f a million reads, deletes free (%s, %s)\n", p.Store, p.WritesPerMillion, p.ReadsPerMillion, p.Source, p.AsOf)
	}
	return nil
}

// looksBack says what the figures rest on.
func (r costReport) looksBack() string {
	var longest float64
	for _, n := range r.Nodes {
		longest = max(longest, n.Seconds)
	}
	back := (time.Duration(longest) * time.Second).Round(time.Second)
	return fmt.Sprintf("the last %s on %d of %d machines", back, len(r.Nodes), len(r.Nodes)+len(r.Unreached))
}
