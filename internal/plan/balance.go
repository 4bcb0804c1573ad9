package plan

import "slices"

// balance moves applications to machines that carry less than three quarters of
// the average, from those that carry more than it. Only what is ready moves, only
// to machines that have lived for a while, and only so many at once. What was begun
// goes on to the average: the distance between the two is what keeps a small
// difference from moving anything.
func (p *placer) balance(in PlaceInput) {
	capable, total := 0, 0
	for i, m := range p.machines {
		if m.Live && !m.Draining && !m.NoRunner {
			capable++
			total += p.load[i]
		}
	}
	if capable < 2 {
		return
	}
	low := func(i int) bool {
		m := p.machines[i]
		return m.Live && m.Steady && !m.Unsure && !m.Draining && !m.NoRunner && 4*p.load[i]*capable < 3*total
	}
	var targets []int
	for i := range p.machines {
		if low(i) && p.moving[i] < MovesPerNode {
			targets = append(targets, i)
		}
	}
	if len(targets) == 0 {
		return
	}
	for _, to := range targets {
		for p.moving[to] < MovesPerNode && p.load[to]*capable < total && p.moveOne(in, to) {
			p.moving[to]++
		}
	}
}

// moveOne moves the application to the machine that it suits best, from the
// machine with the most; false when none may move.
func (p *placer) moveOne(in PlaceInput, to int) bool {
	best, bestFrom := -1, -1
	var bestScore uint64
	for i, s := range p.settled {
		if s.app.Replicas.All || s.app.Publishing != nil || !p.machines[to].Qualifies(s.app) || slices.Contains(s.nodes, p.machines[to].ID) {
			continue
		}
		from := p.fullest(s.nodes)
		// A move has to leave its source no worse off than its target.
		if from < 0 || p.load[from] < p.load[to]+2 {
			continue
		}
		sc := score(s.app.UID, p.machines[to].ID)
		if best < 0 || p.load[from] > p.load[bestFrom] || p.load[from] == p.load[bestFrom] && sc > bestScore {
			best, bestFrom, bestScore = i, from, sc
		}
	}
	if best < 0 {
		return false
	}
	s := p.settled[best]
	nodes := slices.Clone(s.nodes)
	nodes[slices.Index(nodes, p.machines[bestFrom].ID)] = p.machines[to].ID
	p.load[bestFrom]--
	p.load[to]++
	old := in.Placements[s.app.Name]
	p.out.Decisions = append(p.out.Decisions, Decision{
		Application: s.app.Name, UID: s.app.UID, Nodes: nodes,
		DeploySeq: max(s.app.DeploySeq, old.DeploySeq), Reason: old.Reason, Balance: true,
	})
	p.settled = slices.Delete(p.settled, best, best+1)
	return true
}

// fullest is the one of the nodes with the greatest load.
func (p *placer) fullest(nodes []string) int {
	from := -1
	for _, id := range nodes {
		if i, ok := p.index[id]; ok && (from < 0 || p.load[i] > p.load[from]) {
			from = i
		}
	}
	return from
}
