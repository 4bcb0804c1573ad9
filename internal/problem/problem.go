// Package problem turns an error into what a caller sees of it: an RFC 9457
// problem document. It has the only mapping from error codes to HTTP statuses.
package problem

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/scafo/scafo"
)

// ContentType is the media type of a problem document.
const ContentType = "application/problem+json"

// TypeBase begins the type of every problem; the code follows.
const TypeBase = "/reference/errors#"

// Document is a problem document.
type Document struct {
	Type   string     `json:"type"`
	Title  string     `json:"title"`
	Status int        `json:"status"`
	Detail string     `json:"detail,omitempty"`
	Code   scafo.Code `json:"code"`
	// Reference ties an internal error to the line of the node's log that has its
	// cause.
	Reference string `json:"reference,omitempty"`
}

// kind is what is the same for every problem of one code.
type kind struct {
	status int
	title  string
	// retryAfter is in seconds; 0 sends no Retry-After.
	retryAfter int
}

// kinds has one row for each code, like docs/reference/errors.md.
var kinds = map[scafo.Code]kind{
	scafo.CodeApplicationBlocked:  {status: http.StatusConflict, title: "Application blocked"},
	scafo.CodeApplicationDeleting: {status: http.StatusConflict, title: "Application being deleted"},
	scafo.CodeAuthInvalid:         {status: http.StatusUnauthorized, title: "Not authenticated"},
	scafo.CodeAuthScope:           {status: http.StatusForbidden, title: "Not allowed"},
	scafo.CodeCapabilityMissing:   {status: http.StatusConflict, title: "This node cannot do that"},
	scafo.CodeCASConflict:         {status: http.StatusConflict, title: "Conflicting change"},
	scafo.CodeDeployOverloaded:    {status: http.StatusTooManyRequests, title: "Too many deploys", retryAfter: 1},
	scafo.CodeDeploySuperseded:    {status: http.StatusConflict, title: "Overtaken by a later deploy"},
	scafo.CodeDeployTimeout:       {status: http.StatusRequestTimeout, title: "Deploy timed out"},
	scafo.CodeDeploysFrozen:       {status: http.StatusConflict, title: "Deploys are frozen"},
	scafo.CodeDraining:            {status: http.StatusServiceUnavailable, title: "Not ready", retryAfter: 1},
	scafo.CodeInternal:            {status: http.StatusInternalServerError, title: "Internal error"},
	scafo.CodeInvalidInput:        {status: http.StatusBadRequest, title: "Invalid input"},
	scafo.CodeInvalidSlug:         {status: http.StatusBadRequest, title: "Not an application name"},
	scafo.CodeMethodNotAllowed:    {status: http.StatusMethodNotAllowed, title: "Method not allowed"},
	scafo.CodeNotFound:            {status: http.StatusNotFound, title: "Not found"},
	scafo.CodeNotRetired:          {status: http.StatusConflict, title: "Application not retired"},
	scafo.CodePublishFailed:       {status: http.StatusUnprocessableEntity, title: "Publishing failed"},
	scafo.CodeReferenceHeld:       {status: http.StatusConflict, title: "Still in use"},
	scafo.CodeResourceLimit:       {status: http.StatusRequestEntityTooLarge, title: "Too large"},
	scafo.CodeRetireGrace:         {status: http.StatusConflict, title: "Within the grace period"},
	scafo.CodeStoreUnavailable:    {status: http.StatusServiceUnavailable, title: "Store unavailable", retryAfter: 1},
	scafo.CodeTrustMismatch:       {status: http.StatusForbidden, title: "Not trusted for this application"},
	scafo.CodeVersionSkew:         {status: http.StatusConflict, title: "Runtime versions differ"},
}

func kindOf(code scafo.Code) kind {
	if k, ok := kinds[code]; ok {
		return k
	}
	return kinds[scafo.CodeInternal]
}

// Status is the HTTP status of a code.
func Status(code scafo.Code) int { return kindOf(code).status }

// Title is the title of a code, for an error that has none of its own.
func Title(code scafo.Code) string { return kindOf(code).title }

// authInvalid is the detail of every 401, whatever the cause.
const authInvalid = "The request carries no token that this node accepts."

// Of is the document of an error. An error that is no [scafo.Error], or one of a
// code that nobody declared, becomes internal, and nothing of it is shown.
func Of(err error) Document {
	var e *scafo.Error
	if !errors.As(err, &e) {
		e = &scafo.Error{Code: scafo.CodeInternal}
	}
	if _, ok := kinds[e.Code]; !ok {
		e = &scafo.Error{Code: scafo.CodeInternal}
	}
	d := Document{
		Type:   TypeBase + string(e.Code),
		Title:  e.Title,
		Status: Status(e.Code),
		Detail: e.Detail,
		Code:   e.Code,
	}
	if d.Title == "" {
		d.Title = Title(e.Code)
	}
	switch e.Code {
	case scafo.CodeAuthInvalid:
		// The cause is not for the caller: one document for all of them.
		d.Title, d.Detail = Title(e.Code), authInvalid
	case scafo.CodeInternal:
		d.Title, d.Detail = Title(e.Code), "The node failed in a way that it has no name for; its log has the cause under the reference."
		d.Reference = newReference()
	}
	return d
}

func newReference() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// Write answers with the problem document of err and logs what the caller does
// not see: the cause of an internal error under the document's reference, and
// the cause of any other one where it has one. A node that is not ready says all there
// is to say: its refusals have no cause, and are logged for debugging alone, since an
// ingress asks it each second. So is what ended because the caller did.
func Write(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	d := Of(err)
	record(r, log, d, err)
	b, _ := json.Marshal(d) // strings and one integer: it cannot fail
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Del("Etag")
	if s := kindOf(d.Code).retryAfter; s > 0 {
		h.Set("Retry-After", strconv.Itoa(s))
	}
	if d.Code == scafo.CodeAuthInvalid {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(d.Status)
	_, _ = w.Write(b)
}

func record(r *http.Request, log *slog.Logger, d Document, err error) {
	attrs := []any{"method", r.Method, "path", r.URL.Path, "code", string(d.Code)}
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		log.Debug("the caller left", append(attrs, "error", err)...)
	case d.Code == scafo.CodeInternal:
		log.Error("request failed", append(attrs, "reference", d.Reference, "error", err)...)
	case d.Status >= http.StatusInternalServerError && caused(err):
		log.Warn("request refused", append(attrs, "error", err)...)
	default:
		log.Debug("request refused", append(attrs, "error", err)...)
	}
}

// caused reports whether there is more to an error than its document says.
func caused(err error) bool {
	var e *scafo.Error
	return !errors.As(err, &e) || e.Err != nil
}

// MaxBytes bounds a problem document that [Read] takes.
const MaxBytes = 64 << 10

// Read turns a problem document back into the error that it was made from. ok is
// false when r holds none.
func Read(r io.Reader) (e *scafo.Error, d Document, ok bool) {
	b, err := io.ReadAll(io.LimitReader(r, MaxBytes))
	if err != nil || json.Unmarshal(b, &d) != nil || d.Code == "" {
		return nil, Document{}, false
	}
	return &scafo.Error{Code: d.Code, Title: d.Title, Detail: d.Detail}, d, true
}
