package api

import (
	"context"
	"encoding/json"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
	"github.com/scafo/scafo/internal/token"
)

// operatorFor is the record without what is the registry's own.
func operatorFor(op scafo.Operator) scafo.Operator {
	op.Write = ""
	return op
}

func (s *server) listOperators(ctx context.Context, c *call) (answer, error) {
	all, err := s.Operators.Operators(ctx)
	if err != nil {
		return answer{}, err
	}
	list := make([]scafo.Operator, 0, len(all))
	for _, op := range all {
		if c.principal.MayList(op) {
			list = append(list, operatorFor(op))
		}
	}
	return ok(struct {
		Operators []scafo.Operator `json:"operators"`
		Scoped    bool             `json:"scoped,omitempty"`
	}{list, !c.principal.Admin()})
}

func (s *server) postOperator(ctx context.Context, c *call) (answer, error) {
	body, err := s.readObject(c)
	if err != nil {
		return answer{}, err
	}
	g, err := parseGrant(body)
	if err != nil {
		return answer{}, err
	}
	op, err := c.principal.Grant(g)
	if err != nil {
		return answer{}, err
	}
	added, created, err := s.Operators.AddOperator(ctx, op)
	if created {
		s.event(c, "operator.added", "operator", added.ID, "role", string(added.Role), "applications", added.Applications, "supersedes", added.Supersedes)
	}
	// This node may know that there is no such key, or another one.
	s.Verifier.Forget(op.ID)
	if err != nil {
		return answer{}, err
	}
	return ok(struct {
		Operator scafo.Operator `json:"operator"`
	}{operatorFor(added)})
}

// parseGrant reads the body of a registration. Other members are ignored, in the
// key too: what is private never gets any further.
func parseGrant(body members) (g auth.Grant, err error) {
	id, isText := text(body["id"])
	if !isText {
		return g, scafo.Errorf(scafo.CodeInvalidInput, "id must be given, as a string")
	}
	if g.ID, err = scafo.ParseID("operator", id); err != nil {
		return g, err
	}
	if g.PublicKey, err = parseKey(body["publicKey"]); err != nil {
		return g, err
	}
	if v, given := body["role"]; given {
		role, _ := text(v)
		g.Role = scafo.Role(role)
		if g.Role != scafo.RoleAdmin && g.Role != scafo.RoleOperator {
			return g, scafo.Errorf(scafo.CodeInvalidInput, `role is "admin" or "operator", where it is given`)
		}
	}
	if v, given := body["supersedes"]; given {
		other, isText := text(v)
		if !isText {
			return g, scafo.Errorf(scafo.CodeInvalidInput, "supersedes is a string, where it is given")
		}
		g.Supersedes = &other
	}
	if v, given := body["applications"]; given {
		entries, isList := texts(v)
		if !isList {
			return g, scafo.Errorf(scafo.CodeInvalidInput, "applications is an array of strings, where it is given")
		}
		if g.Applications, err = scafo.ParseScope(entries); err != nil {
			return g, err
		}
	}
	return g, nil
}

func parseKey(v json.RawMessage) (scafo.PublicKey, error) {
	var k scafo.PublicKey
	jwk, err := parseObject(v)
	if err != nil {
		return k, scafo.Wrap(err, scafo.CodeInvalidInput, `publicKey must be given, as an object with kty "OKP", crv "Ed25519" and x`)
	}
	k.Kty, _ = text(jwk["kty"])
	k.Crv, _ = text(jwk["crv"])
	k.X, _ = text(jwk["x"])
	_, err = token.ParsePublicKey(k)
	return k, err
}

func (s *server) deleteOperator(ctx context.Context, c *call) (answer, error) {
	if err := s.noBody(c); err != nil {
		return answer{}, err
	}
	id := c.params["id"]
	if err := c.principal.MayRevoke(id); err != nil {
		return answer{}, err
	}
	removed, err := s.Operators.RemoveOperator(ctx, id)
	if removed {
		s.event(c, "operator.removed", "operator", id)
	}
	s.Verifier.Forget(id)
	if err != nil {
		return answer{}, err
	}
	return ok(struct {
		Removed string `json:"removed"`
	}{id})
}
