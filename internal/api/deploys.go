package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/deploy"
)

// postDeploy takes a deploy in. The guard has verified the caller before the
// header is looked at, and the body is not touched here at all: its first read is
// what tells a client that waits for it (Expect: 100-continue) to send it.
func (s *server) postDeploy(ctx context.Context, c *call) (answer, error) {
	values := c.r.Header.Values(scafo.DeployHeader)
	if len(values) > 1 {
		return answer{}, scafo.Malformed("the %s header is there %d times", scafo.DeployHeader, len(values))
	}
	m, err := scafo.ParseDeployHeader(c.r.Header.Get(scafo.DeployHeader))
	if err != nil {
		return answer{}, err
	}
	req := deploy.Request{
		Application: c.params["name"],
		Caller:      c.principal.ID,
		OIDC:        c.principal.OIDC,
		Metadata:    m,
	}
	if c.r.ContentLength != 0 {
		req.Body = newArtifactBody(c)
	}
	status, err := s.Deploys.Accept(ctx, req)
	if err != nil {
		return answer{}, err
	}
	a, err := document(http.StatusAccepted, status)
	return a.with("Location", "/v1/deploys/"+status.ID), err
}

// errNoDeploy answers an id that names no deploy.
func errNoDeploy() error { return scafo.Errorf(scafo.CodeNotFound, "there is no such deploy") }

// deployApplication is the application that a deploy's id names. An id that is
// none names no application, and is no deploy either.
func deployApplication(p params) (string, error) {
	id, ok := scafo.ParseDeployID(p["id"])
	if !ok {
		return "", errNoDeploy()
	}
	return id.Application, nil
}

func (s *server) getDeploy(ctx context.Context, c *call) (answer, error) {
	id, valid := scafo.ParseDeployID(c.params["id"])
	if !valid {
		return answer{}, errNoDeploy()
	}
	// Asked for before the status, so that no change falls in between.
	changed := s.Deploys.Changed(id)
	a, err := s.deployStatus(ctx, id)
	if err != nil {
		return answer{}, err
	}
	if changed != nil && notModified(c.r, etagOf(a)) {
		s.await(ctx, c.r, changed)
		if a, err = s.deployStatus(ctx, id); err != nil {
			return answer{}, err
		}
	}
	etag := etagOf(a)
	if notModified(c.r, etag) {
		a = answer{status: http.StatusNotModified}
	}
	return a.with("ETag", etag), nil
}

func (s *server) deployStatus(ctx context.Context, id scafo.DeployID) (answer, error) {
	status, err := s.Deploys.Status(ctx, id)
	if err != nil {
		return answer{}, err
	}
	if status.ID != id.String() || status.Application != id.Application {
		return answer{}, errNoDeploy()
	}
	return ok(status)
}

// etagOf tells one answer from another by its content.
func etagOf(a answer) string {
	sum := sha256.Sum256(a.body)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// artifactBody is the request body of a deploy. It lets whoever reads it bound how
// long a read may take, which a context alone cannot: a read of a connection that
// has gone quiet ends only at its deadline.
type artifactBody struct {
	io.Reader
	control *http.ResponseController
	size    int64
}

func newArtifactBody(c *call) *artifactBody {
	return &artifactBody{Reader: c.r.Body, control: http.NewResponseController(c.w), size: c.r.ContentLength}
}

// Size is what Content-Length says; -1 when it says nothing.
func (b *artifactBody) Size() int64 { return b.size }

// SetReadDeadline ends reads at t. A server that has no deadlines ignores it.
func (b *artifactBody) SetReadDeadline(t time.Time) error {
	err := b.control.SetReadDeadline(t)
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}
