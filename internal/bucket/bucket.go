// Package bucket is the one thing that the machines of a fleet share: an object
// store with conditional writes. It has the interface and the outcomes of a
// call; the drivers lie beneath it (s3, embedded, memory), fault wraps any of
// them with injected failures, and buckettest is the suite that all of them pass.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Object is what a read returned.
type Object struct {
	Key  string
	Body []byte
	ETag string
	// Modified is the store's Last-Modified; Date is the store's own time at the
	// answer (its Date header). Their difference is an age by one clock. Date is
	// zero where the store sent none.
	Modified time.Time
	Date     time.Time
}

// Info is one row of a listing.
type Info struct {
	Key      string
	ETag     string
	Size     int64
	Modified time.Time
}

// ListOptions narrow a listing.
type ListOptions struct {
	// Delimiter, when set, rolls up keys that share a prefix up to it.
	Delimiter string
	// After starts the listing behind this key.
	After string
	// Max bounds the rows of one page; 0 takes the store's own bound, 1,000.
	Max int
}

// Page is one page of a listing, in key order.
type Page struct {
	Objects  []Info
	Prefixes []string // rolled up by the delimiter
	// Next is the After of the next page; empty on the last one.
	Next string
}

// Bucket is an object store with conditional writes. Keys are relative to the
// bucket's own prefix. All methods are safe for concurrent use. No method tries
// again by itself: a second try of a conditional write can turn its own success
// into a refusal.
type Bucket interface {
	// Get reads an object; ErrNotFound when there is none.
	Get(ctx context.Context, key string) (*Object, error)
	// GetIfChanged is Get with If-None-Match: ErrNotModified while the object has
	// that ETag. An empty etag is Get.
	GetIfChanged(ctx context.Context, key, etag string) (*Object, error)
	// Create writes an object that must not exist (If-None-Match: *); ErrRefused
	// when it does. It returns the new ETag.
	Create(ctx context.Context, key string, body []byte) (string, error)
	// Replace writes an object that must have that ETag (If-Match); ErrRefused when
	// it has another one or is missing. It returns the new ETag.
	Replace(ctx context.Context, key, etag string, body []byte) (string, error)
	// Put writes an object whatever was there. It is for content that nobody else
	// writes: blobs named by their digest, and keys under one's own uid.
	Put(ctx context.Context, key string, body []byte) (string, error)
	// Delete removes an object; a missing one is no error. It is not guarded: see
	// the registry's rules for where it may be used.
	Delete(ctx context.Context, key string) error
	// List lists the keys that begin with prefix, one page.
	List(ctx context.Context, prefix string, o ListOptions) (Page, error)
}

// The outcomes of a call beside success. A driver's error wraps exactly one of
// them, with the cause behind it.
var (
	// ErrNotFound: there is no such object. Only reads return it.
	ErrNotFound = errors.New("no such object")
	// ErrNotModified: the object still has the ETag that the caller named.
	ErrNotModified = errors.New("not modified")
	// ErrRefused: the condition of a write did not hold, and nothing was written.
	ErrRefused = errors.New("condition refused")
	// ErrUnavailable: the store did not do it (refused the connection, throttled,
	// answered 5xx to a read); nothing was written.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnknown: a write may or may not have happened: the answer was lost. Only
	// reading back can tell.
	ErrUnknown = errors.New("outcome unknown")
	// ErrDenied: the store refuses these credentials, or does not have this bucket.
	ErrDenied = errors.New("denied by the store")
	// ErrInvalid: the store cannot hold this key or this object (too long, a
	// parent or a child of another object in a store of files), or it does not
	// know this kind of request; nothing was written, and no second try will do
	// better.
	ErrInvalid = errors.New("not possible in this store")
)

// ErrFull is a cause, beside the outcome ErrUnavailable: the store has no room left.
var ErrFull = errors.New("the store is full")

// Error is a failed call: what was being done to which key, and why not.
type Error struct {
	Op   string // get, create, replace, put, delete, list
	Key  string
	Kind error // one of the outcomes above
	Err  error // the cause; may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("bucket: %s %s: %v", e.Op, e.Key, e.Kind)
	}
	return fmt.Sprintf("bucket: %s %s: %v: %v", e.Op, e.Key, e.Kind, e.Err)
}

// Unwrap gives errors.Is both the outcome and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Walk calls fn for every object under prefix, in key order, page by page.
func Walk(ctx context.Context, b Bucket, prefix string, fn func(Info) error) error {
	o := ListOptions{}
	for {
		page, err := b.List(ctx, prefix, o)
		if err != nil {
			return err
		}
		for _, i := range page.Objects {
			if err := fn(i); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		o.After = page.Next
	}
}
