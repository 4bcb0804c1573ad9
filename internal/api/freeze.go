package api

import (
	"context"

	"github.com/scafo/scafo"
)

// freezeFor is the record without what is the registry's own.
func freezeFor(f scafo.Freeze) scafo.Freeze {
	f.Write = ""
	return f
}

func (s *server) getFreeze(ctx context.Context, _ *call) (answer, error) {
	f, err := s.Freezes.Freeze(ctx)
	if err != nil {
		return answer{}, err
	}
	if f == nil {
		return answer{}, &scafo.Error{Code: scafo.CodeNotFound, Title: "Deploys are not frozen", Detail: "this fleet holds no freeze: deploys are taken"}
	}
	return ok(struct {
		Freeze scafo.Freeze `json:"freeze"`
	}{freezeFor(*f)})
}

func (s *server) postFreeze(ctx context.Context, c *call) (answer, error) {
	reason, err := s.freezeReason(c)
	if err != nil {
		return answer{}, err
	}
	f, created, err := s.Freezes.FreezeDeploys(ctx, c.principal.ID, reason)
	if created {
		s.event(c, "fleet.frozen", "reason", f.Reason)
	}
	if err != nil {
		return answer{}, err
	}
	return ok(struct {
		Freeze  scafo.Freeze `json:"freeze"`
		Created bool         `json:"created"`
	}{freezeFor(f), created})
}

// freezeReason reads the body of a freeze, where there is one.
func (s *server) freezeReason(c *call) (string, error) {
	b, err := s.readBody(c)
	if err != nil || len(b) == 0 {
		return "", err
	}
	body, err := parseBody(b)
	if err != nil {
		return "", err
	}
	v, given := body["reason"]
	if !given {
		return "", nil
	}
	reason, isText := text(v)
	if !isText {
		return "", scafo.Errorf(scafo.CodeInvalidInput, "reason is a string, where it is given")
	}
	return scafo.ParseFreezeReason(reason)
}

func (s *server) deleteFreeze(ctx context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	lifted, err := s.Freezes.LiftFreeze(ctx)
	if lifted {
		s.event(c, "fleet.unfrozen")
	}
	if err != nil {
		return answer{}, err
	}
	return ok(struct {
		Lifted bool `json:"lifted"`
	}{lifted})
}
