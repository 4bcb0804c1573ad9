package s3

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/scafo/scafo/internal/bucket"
)

// Codes of S3's error documents that decide an outcome which the status alone
// leaves open.
var (
	// codesDenied: credentials or bucket are wrong, whatever the status.
	codesDenied = set("AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken",
		"InvalidAccessKeyId", "InvalidBucketName", "InvalidSecurity", "InvalidToken", "NoSuchBucket",
		"PermanentRedirect", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired",
		"XAdminNoSuchUser")
	// codesTurnedAway: the store is too busy or too full, and did nothing.
	codesTurnedAway = set("SlowDown", "SlowDownRead", "SlowDownWrite", "RequestLimitExceeded", "Throttling",
		"ThrottlingException", "TooManyRequests", "TooManyRequestsException", "RequestTimeout",
		"IncompleteBody", "XMinioServerNotInitialized", "InsufficientStorage", "QuotaExceeded")
	// codesFull are those of them that time does not cure.
	codesFull = set("InsufficientStorage", "QuotaExceeded")
	// codesParent: stores over a file system have no p beside p/q.
	codesParent = set("ObjectParentIsFile", "ExistingObjectIsDirectory", "DirectoryObjectContainsData",
		"XMinioParentIsObject", "XMinioObjectExistsAsDirectory")
	// codesMissing: there is no such object. "NotFound" is not among them: the SDK
	// makes it up for any 404 without an error document.
	codesMissing = set("NoSuchKey")
)

func set(codes ...string) map[string]bool {
	m := make(map[string]bool, len(codes))
	for _, c := range codes {
		m[c] = true
	}
	return m
}

func (r *request) write() bool { return r.op != "get" && r.op != "list" }

func (r *request) conditional() bool { return r.op == "create" || r.op == "replace" }

// failed turns an error of the SDK into one with an outcome.
func (r *request) failed(err error) error {
	var response *smithyhttp.ResponseError
	if !errors.As(err, &response) || response.Response == nil || response.Response.Response == nil {
		return r.fail(r.silence(), err)
	}
	var code string
	if api := smithy.APIError(nil); errors.As(err, &api) {
		code = api.ErrorCode()
	}
	if codesFull[code] {
		err = fmt.Errorf("%w: %w", bucket.ErrFull, err)
	}
	return r.fail(r.outcome(response.HTTPStatusCode(), code), err)
}

// silence is the outcome of a request without an answer.
func (r *request) silence() error {
	if r.write() && r.sent.Load() {
		return bucket.ErrUnknown
	}
	return bucket.ErrUnavailable
}

// outcome reads an answer that is no success.
func (r *request) outcome(status int, code string) error {
	switch {
	case codesTurnedAway[code], status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return bucket.ErrUnavailable
	case codesDenied[code], status == http.StatusUnauthorized, status == http.StatusForbidden:
		return bucket.ErrDenied
	case codesParent[code]:
		return bucket.ErrInvalid
	}
	switch status {
	case http.StatusNotModified:
		if r.op == "get" {
			return bucket.ErrNotModified
		}
	case http.StatusNotFound:
		return r.notFound(code)
	case http.StatusPreconditionFailed, http.StatusConflict:
		switch {
		case r.conditional():
			return bucket.ErrRefused
		case code == "OperationAborted": // two unguarded writes met
			return bucket.ErrUnavailable
		}
		return bucket.ErrInvalid
	case http.StatusNotImplemented:
		return bucket.ErrInvalid
	}
	switch {
	case status >= 500, status < 300:
		// A 2xx that could not be read; a 5xx that may have come after the work.
		return r.silence()
	case status < 400:
		return bucket.ErrDenied // another endpoint has the bucket
	default:
		return bucket.ErrInvalid
	}
}

// notFound takes a 404 for a missing object only when the store says so: a 404
// of something that is no store must not read as an empty registry.
func (r *request) notFound(code string) error {
	if codesMissing[code] {
		switch r.op {
		case "get":
			return bucket.ErrNotFound
		case "replace":
			return bucket.ErrRefused
		}
	}
	return bucket.ErrDenied
}
