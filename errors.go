package scafo

import (
	"errors"
	"fmt"
)

// Code names one kind of failure. It is the `code` of a problem document
// (RFC 9457) and of a failed deploy; docs/reference/errors.md has one row for
// each.
type Code string

// The codes. Their HTTP status is decided in one place, internal/problem.
const (
	CodeApplicationBlocked  Code = "application-blocked"
	CodeApplicationDeleting Code = "application-deleting"
	CodeAuthInvalid         Code = "auth-invalid"
	CodeAuthScope           Code = "auth-scope"
	CodeCapabilityMissing   Code = "capability-missing"
	CodeCASConflict         Code = "cas-conflict"
	CodeDeployOverloaded    Code = "deploy-overloaded"
	CodeDeploySuperseded    Code = "deploy-superseded"
	CodeDeployTimeout       Code = "deploy-timeout"
	CodeDeploysFrozen       Code = "deploys-frozen"
	CodeDraining            Code = "draining"
	CodeInternal            Code = "internal"
	CodeInvalidInput        Code = "invalid-input"
	CodeInvalidSlug         Code = "invalid-slug"
	CodeMethodNotAllowed    Code = "method-not-allowed"
	CodeNotFound            Code = "not-found"
	CodeNotRetired          Code = "not-retired"
	CodePublishFailed       Code = "publish-failed"
	CodeReferenceHeld       Code = "reference-held"
	CodeResourceLimit       Code = "resource-limit"
	CodeRetireGrace         Code = "retire-grace"
	CodeStoreUnavailable    Code = "store-unavailable"
	CodeTrustMismatch       Code = "trust-mismatch"
	CodeVersionSkew         Code = "version-skew"
)

// Codes lists every code, in order.
func Codes() []Code {
	return []Code{
		CodeApplicationBlocked, CodeApplicationDeleting, CodeAuthInvalid, CodeAuthScope,
		CodeCapabilityMissing, CodeCASConflict, CodeDeployOverloaded, CodeDeploySuperseded,
		CodeDeployTimeout, CodeDeploysFrozen, CodeDraining, CodeInternal, CodeInvalidInput,
		CodeInvalidSlug, CodeMethodNotAllowed, CodeNotFound, CodeNotRetired, CodePublishFailed,
		CodeReferenceHeld, CodeResourceLimit, CodeRetireGrace, CodeStoreUnavailable,
		CodeTrustMismatch, CodeVersionSkew,
	}
}

// Error is the one error type that crosses package borders towards a caller.
// Title and Detail are safe to show to whoever made the call; Err, the cause, is
// for the log alone.
type Error struct {
	Code   Code
	Title  string // the phrase for this kind of refusal; empty takes the code's own
	Detail string
	Err    error
}

func (e *Error) Error() string {
	s := string(e.Code)
	if e.Detail != "" {
		s += ": " + e.Detail
	} else if e.Title != "" {
		s += ": " + e.Title
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an [Error] whose detail is shown to the caller. It does not take
// %w: give a cause with [Wrap].
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Wrap is [Errorf] with a cause, which only the log shows.
func Wrap(err error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...), Err: err}
}

// CodeOf is the code of err, or CodeInternal when nothing in its chain is an
// [Error]. It is empty for a nil error.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// Malformed is an invalid-input refusal titled "Malformed request".
func Malformed(format string, args ...any) *Error {
	return &Error{Code: CodeInvalidInput, Title: "Malformed request", Detail: fmt.Sprintf(format, args...)}
}
