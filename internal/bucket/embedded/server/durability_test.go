package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/embedded"
	"github.com/scafo/scafo/internal/bucket/s3"
)

// The sizes of the kill test.
const (
	killRounds  = 4
	killWriters = 8
	killAfter   = 25 // acknowledged writes in a round
)

// writer writes one key again and again, each value telling its number, and
// remembers what was acknowledged.
type writer struct {
	key   string
	size  int
	acked int // the number of the last acknowledged value; 0 is none
	tried int // the number of the last value that was sent
	etag  string
}

func (w *writer) value(n int) []byte {
	return append(fmt.Appendf(nil, "%08d", n), bytes.Repeat([]byte{byte('a' + n%26)}, w.size+n)...)
}

// write goes on until a write fails.
func (w *writer) write(ctx context.Context, s *s3.Store, acked chan<- struct{}) {
	for {
		w.tried++
		var etag string
		var err error
		switch {
		case w.etag == "":
			etag, err = s.Create(ctx, w.key, w.value(w.tried))
		case w.tried%3 == 0:
			etag, err = s.Put(ctx, w.key, w.value(w.tried))
		default:
			etag, err = s.Replace(ctx, w.key, w.etag, w.value(w.tried))
		}
		if err != nil {
			return
		}
		w.acked, w.etag = w.tried, etag
		select {
		case acked <- struct{}{}:
		default: // enough for the round
		}
	}
}

// check reads the key back: the acknowledged value, or one that was sent after
// it, whole, with a working ETag.
func (w *writer) check(t *testing.T, s *s3.Store) {
	t.Helper()
	o, err := s.Get(t.Context(), w.key)
	if errors.Is(err, bucket.ErrNotFound) && w.acked == 0 {
		w.etag = ""
		return
	}
	if err != nil {
		t.Fatalf("%s: %v, acknowledged %d", w.key, err, w.acked)
	}
	var n int
	if _, err := fmt.Sscanf(string(o.Body[:min(8, len(o.Body))]), "%d", &n); err != nil || !bytes.Equal(o.Body, w.value(n)) {
		t.Fatalf("%s: %d bytes that are no value beginning with %.12q", w.key, len(o.Body), o.Body)
	}
	if n < w.acked || n > w.tried {
		t.Fatalf("%s: value %d, acknowledged %d, sent %d", w.key, n, w.acked, w.tried)
	}
	if n == w.acked && o.ETag != w.etag {
		t.Fatalf("%s: ETag %s, acknowledged %s", w.key, o.ETag, w.etag)
	}
	w.acked, w.etag = n, o.ETag
}

// The server is killed in the middle of writes, some of which replace values of
// a megabyte, again and again. Whatever it acknowledged is there, whole.
// (What a power loss would leave is the subject of TestOrderOfSyncs: a killed
// process leaves what it has written to the kernel.)
func TestKillDuringWrites(t *testing.T) {
	dir := t.TempDir()
	writers := make([]*writer, killWriters)
	for i := range writers {
		writers[i] = &writer{key: fmt.Sprintf("w/%d/deep/%d", i%3, i), size: []int{10, 5000, 1 << 20}[i%3]}
	}
	var s *s3.Store
	for round := range killRounds {
		e, h := ensure(t, dir)
		if s == nil {
			s = open(t, e)
		}
		for _, w := range writers {
			if round > 0 {
				w.check(t, s)
			}
		}
		acked := make(chan struct{}, killAfter*killRounds)
		var wg sync.WaitGroup
		for _, w := range writers {
			wg.Go(func() { w.write(t.Context(), s, acked) })
		}
		killOnce(t, h, acked, killAfter*(round+1))
		wg.Wait()
	}
	e, _ := ensure(t, dir)
	total := 0
	for _, w := range writers {
		w.check(t, s)
		total += w.acked
	}
	t.Logf("%d writes were acknowledged", total)
	// Nothing half-written shows, in listings or as a file.
	if err := bucket.Walk(t.Context(), s, "", func(i bucket.Info) error {
		if !strings.HasPrefix(i.Key, "w/") {
			return fmt.Errorf("listed %s", i.Key)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "bucket", e.Bucket, ".sgwtmp"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if f.Type().IsRegular() {
			t.Errorf("a temporary file is left: %s", f.Name())
		}
	}
}

// killOnce kills the server once so many writes were acknowledged.
func killOnce(t *testing.T, h *embedded.Handle, acked <-chan struct{}, after int) {
	t.Helper()
	stuck := time.NewTimer(time.Minute)
	defer stuck.Stop()
	for range after {
		select {
		case <-acked:
		case <-stuck.C:
			t.Fatal("the writers are stuck")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := h.Kill(ctx); err != nil {
		t.Fatal(err)
	}
}

// The sizes of the race of removals.
const (
	removalKeys   = 8
	removalRounds = 60
)

// A conditional delete and a conditional replace of the same version: exactly
// one of them may succeed. (The backend by itself loses acknowledged writes
// here: it checks the delete's condition without the lock.)
func TestConditionalDeleteExcludesReplace(t *testing.T) {
	e, _ := ensure(t, t.TempDir())
	s, client := open(t, e), raw(e)
	var replaced, deleted atomic.Int64
	g, ctx := errgroup.WithContext(t.Context())
	for k := range removalKeys {
		g.Go(func() error {
			// Neighbours keep some folders, others vanish with their object.
			key := fmt.Sprintf("removal/%d/%d", k/2, k)
			for round := range removalRounds {
				etag, err := s.Put(ctx, key, fmt.Appendf(nil, "start %d", round))
				if err != nil {
					return err
				}
				did, err := replaceAndDelete(ctx, s, client, e.Bucket, key, etag)
				if err != nil {
					return fmt.Errorf("%s, round %d: %w", key, round, err)
				}
				if did == "replaced" {
					replaced.Add(1)
				} else {
					deleted.Add(1)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d replaced, %d deleted", replaced.Load(), deleted.Load())
}

func replaceAndDelete(ctx context.Context, s *s3.Store, client *awss3.Client, name, key, etag string) (string, error) {
	full := s.Prefix() + key
	var wg sync.WaitGroup
	var rerr, derr error
	wg.Go(func() { _, rerr = s.Replace(ctx, key, etag, []byte("replaced")) })
	wg.Go(func() {
		_, derr = client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &name, Key: &full, IfMatch: &etag})
	})
	wg.Wait()
	o, gerr := s.Get(ctx, key)
	switch {
	case rerr == nil && derr == nil:
		return "", errors.New("both succeeded")
	case rerr == nil && gerr == nil && string(o.Body) == "replaced":
		return "replaced", nil
	case rerr == nil:
		return "", fmt.Errorf("the acknowledged replace is lost: %w", gerr)
	case derr == nil && errors.Is(rerr, bucket.ErrRefused) && errors.Is(gerr, bucket.ErrNotFound):
		return "deleted", nil
	}
	return "", fmt.Errorf("replace: %w, delete: %w, read: %w", rerr, derr, gerr)
}

// Folders come and go while objects are written into them: no write is lost or
// fails because its folder was just removed.
func TestFoldersComeAndGo(t *testing.T) {
	e, _ := ensure(t, t.TempDir())
	s := open(t, e)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 8 {
		g.Go(func() error {
			key := fmt.Sprintf("folders/a/b/c/%d", i)
			for n := range 40 {
				body := fmt.Sprint(n)
				etag, err := s.Create(ctx, key, []byte(body))
				if err != nil {
					return err
				}
				o, err := s.Get(ctx, key)
				if err != nil || string(o.Body) != body || o.ETag != etag {
					return fmt.Errorf("%s: %v, %w", key, o, err)
				}
				if err := s.Delete(ctx, key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(t.Context(), "", bucket.ListOptions{Delimiter: "/"})
	if err != nil || len(page.Objects)+len(page.Prefixes) != 0 {
		t.Errorf("left: %+v, %v", page, err)
	}
}

// Runtimes upload large values in parts; those survive a kill as well, and an
// upload that was not finished can be.
func TestUploadInParts(t *testing.T) {
	dir := t.TempDir()
	e, h := ensure(t, dir)
	client := raw(e)
	ctx := t.Context()
	name, key := aws.String(e.Bucket), aws.String("parts/large")
	up, err := client.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{Bucket: name, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	var parts []types.CompletedPart
	var whole []byte
	for n := int32(1); n <= 2; n++ {
		body := bytes.Repeat([]byte{byte('0' + n)}, 5<<20)
		whole = append(whole, body...)
		p, err := client.UploadPart(ctx, &awss3.UploadPartInput{
			Bucket: name, Key: key, UploadId: up.UploadId, PartNumber: &n, Body: bytes.NewReader(body),
		})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, types.CompletedPart{PartNumber: &n, ETag: p.ETag})
	}
	kill := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := h.Kill(ctx); err != nil {
			t.Fatal(err)
		}
		_, h = ensure(t, dir)
	}
	kill()
	if _, err := client.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: name, Key: key, UploadId: up.UploadId, IfNoneMatch: aws.String("*"),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}); err != nil {
		t.Fatal(err)
	}
	kill()
	s, err := s3.Open(ctx, s3.Config{
		Bucket: e.Bucket, Endpoint: e.URL, Region: e.Region, Credentials: client.Options().Credentials,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	o, err := s.Get(ctx, *key)
	if err != nil || !bytes.Equal(o.Body, whole) {
		t.Fatalf("%v", err)
	}
	if _, err := s.Replace(ctx, *key, o.ETag, []byte("small")); err != nil {
		t.Errorf("a replace with the ETag of parts: %v", err)
	}
	// The bucket itself cannot be deleted.
	if _, err := client.DeleteBucket(ctx, &awss3.DeleteBucketInput{Bucket: name}); err == nil {
		t.Error("the bucket was deleted")
	}
}
