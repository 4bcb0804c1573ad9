package deploy

import (
	"context"

	"github.com/scafo/scafo"
)

// endable lets the work on a deploy be given up while it is under way.
func (s *Service) endable(j *job, end context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.uid, j.end = j.deploy.UID, end
}

// End gives up the deploys of an application that is being deleted: their commands
// are killed, and they end failed, so that nothing of them is written after the
// deletion has looked. It returns at once and may be called again.
func (s *Service) End(app scafo.Application) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.active {
		if j.end != nil && j.uid == app.UID {
			j.end(errReplaced(app.Name))
		}
	}
}
