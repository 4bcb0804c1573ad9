package server

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // an ETag is an MD5
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/s3response"
)

// recorder is a disk that writes down what is synced, and what could be seen of
// one object at that moment.
type recorder struct {
	mu     sync.Mutex
	steps  []string // guarded by mu
	failOn string   // a step's beginning that fails; guarded by mu
	watch  string   // the object's file
}

var errDisk = errors.New("the disk is broken")

func (r *recorder) disk() disk {
	return disk{
		syncFile: func(f *os.File) error {
			i, err := f.Stat()
			if err != nil {
				return err
			}
			if i.IsDir() {
				return r.step("attributes of " + f.Name())
			}
			content, err := os.ReadFile(f.Name())
			if err != nil {
				return err
			}
			_, err = meta.XattrMeta{}.RetrieveAttribute(f, "", "", etagAttribute)
			return r.step(fmt.Sprintf("file %d bytes, ETag %v", len(content), err == nil))
		},
		syncDir: func(dir string) error { return r.step("folder " + dir) },
	}
}

func (r *recorder) step(s string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := "absent"
	if b, err := os.ReadFile(r.watch); err == nil {
		there = fmt.Sprintf("%.3s", b)
	}
	r.steps = append(r.steps, s+": "+there)
	if r.failOn != "" && strings.HasPrefix(s, r.failOn) {
		return errDisk
	}
	return nil
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.steps
	r.steps = nil
	return s
}

const testBucket = "scafo"

// testStore runs the store in this process. It changes the working directory, as
// the backend does.
func testStore(t *testing.T, watch string) (*store, *recorder) {
	t.Helper()
	old, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, testBucket), 0o700); err != nil {
		t.Fatal(err)
	}
	r := &recorder{watch: filepath.Join(dir, testBucket, watch)}
	s, err := newStore(dir, r.disk())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Shutdown()
		if err := os.Chdir(old); err != nil {
			t.Error(err)
		}
	})
	return s, r
}

func put(ctx context.Context, s *store, key, body string) error {
	_, err := s.PutObject(ctx, s3response.PutObjectInput{
		Bucket: aws.String(testBucket), Key: &key, Body: strings.NewReader(body),
		ContentLength: aws.Int64(int64(len(body))),
	})
	return err
}

func remove(ctx context.Context, s *store, key string) error {
	_, err := s.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(testBucket), Key: &key})
	return err
}

func wantSteps(t *testing.T, what string, r *recorder, want ...string) {
	t.Helper()
	if got := r.take(); !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// What is synced when. Each step says what a reader could see at that moment:
// content and ETag are on the disk before the object appears, and then the
// folders, each newly made one included, before the answer.
func TestOrderOfSyncs(t *testing.T) {
	s, r := testStore(t, "a/b/k")
	ctx := t.Context()
	if err := put(ctx, s, "a/b/k", "one"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "the first object", r,
		"file 3 bytes, ETag true: absent",
		"folder scafo/a/b: one", "folder scafo/a: one", "folder scafo: one")

	if err := put(ctx, s, "a/b/k", "two!"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "a replacement", r, "file 4 bytes, ETag true: one", "folder scafo/a/b: two")

	if err := put(ctx, s, "a/c", "x"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "a neighbour of a folder", r, "file 1 bytes, ETag true: two", "folder scafo/a: two")

	if err := remove(ctx, s, "a/b/k"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "a removal takes the empty folder with it", r, "folder scafo/a: absent")

	if err := put(ctx, s, "a/b/k", "new"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "a folder that was removed and made again", r,
		"file 3 bytes, ETag true: absent", "folder scafo/a/b: new", "folder scafo/a: new")

	large := strings.Repeat("x", earlySync)
	if err := put(ctx, s, "a/b/k", large); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "large content is synced before the lock too", r,
		fmt.Sprintf("file %d bytes, ETag false: new", earlySync),
		fmt.Sprintf("file %d bytes, ETag true: new", earlySync),
		"folder scafo/a/b: xxx")

	if err := put(ctx, s, "top", "t"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "an object of the bucket itself", r, "file 1 bytes, ETag true: xxx", "folder scafo: xxx")
	if err := remove(ctx, s, "missing/key"); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "removing what is missing", r, "folder scafo: xxx")
}

// A disk that fails is no acknowledgement, and content that may not be on the
// disk does not appear.
func TestSyncFails(t *testing.T) {
	s, r := testStore(t, "k")
	ctx := t.Context()
	if err := put(ctx, s, "k", "old"); err != nil {
		t.Fatal(err)
	}
	r.failOn = "file"
	if err := put(ctx, s, "k", "new"); !errors.Is(err, errDisk) {
		t.Errorf("put: %v", err)
	}
	if b, err := os.ReadFile(r.watch); err != nil || string(b) != "old" {
		t.Errorf("the object is %q, %v", b, err)
	}
	left, err := os.ReadDir(filepath.Join(filepath.Dir(r.watch), ".sgwtmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v %v", left, err)
	}
	r.failOn = "folder"
	if err := put(ctx, s, "k", "new"); !errors.Is(err, errDisk) {
		t.Errorf("put: %v", err)
	}
	if err := remove(ctx, s, "k"); !errors.Is(err, errDisk) {
		t.Errorf("delete: %v", err)
	}
	r.failOn = ""
	// Nothing is held after a failure.
	if err := put(ctx, s, "k", "newer"); err != nil {
		t.Error(err)
	}
	if err := remove(ctx, s, "k"); err != nil {
		t.Error(err)
	}
}

func TestPartsAndCopies(t *testing.T) {
	s, r := testStore(t, "m/k")
	ctx := t.Context()
	bucketName, key := aws.String(testBucket), aws.String("m/k")
	up, err := s.CreateMultipartUpload(ctx, s3response.CreateMultipartUploadInput{Bucket: bucketName, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	uploads := uploadsDir(testBucket, "m/k")
	steps := r.take()
	for _, want := range []string{uploads, filepath.Dir(uploads), "scafo/.sgwtmp", "scafo"} {
		if !slices.Contains(steps, "folder "+want+": absent") {
			t.Errorf("beginning an upload does not sync %s: %q", want, steps)
		}
	}
	body := bytes.Repeat([]byte("p"), 5<<20)
	part, err := s.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: bucketName, Key: key, UploadId: &up.UploadId, PartNumber: aws.Int32(1),
		Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantSteps(t, "a part", r, fmt.Sprintf("file %d bytes, ETag true: absent", len(body)),
		"folder "+filepath.Join(uploads, up.UploadId)+": absent")
	if _, _, err := s.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: bucketName, Key: key, UploadId: &up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: part.ETag}}},
	}); err != nil {
		t.Fatal(err)
	}
	done := fmt.Sprintf("file %d bytes, ETag true: absent", len(body))
	wantSteps(t, "completing an upload", r, done, done, "folder scafo/m: ppp", "folder scafo: ppp")

	if _, err := s.CopyObject(ctx, s3response.CopyObjectInput{
		Bucket: bucketName, Key: aws.String("m/copy"), CopySource: aws.String(testBucket + "/m/k"),
		ExpectedBucketOwner: aws.String(""),
	}); err != nil {
		t.Fatal(err)
	}
	steps = r.take()
	if len(steps) != 2 || !strings.HasPrefix(steps[0], "file") || !strings.HasPrefix(steps[1], "folder scafo/m:") {
		t.Errorf("a copy: %q", steps)
	}
	if _, err := s.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: bucketName, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: key}, {Key: aws.String("m/copy")}}},
	}); err != nil {
		t.Fatal(err)
	}
	steps = r.take()
	if len(steps) == 0 || !slices.Contains(steps, "folder scafo: absent") {
		t.Errorf("removing many: %q", steps)
	}
}

// The backend stores the ETag under this name, and nothing after it but what
// may be missing; otherwise the syncs above would come too early.
func TestAttributeNames(t *testing.T) {
	s, r := testStore(t, "k")
	if err := put(t.Context(), s, "k", "one"); err != nil {
		t.Fatal(err)
	}
	sum := md5.Sum([]byte("one")) //nolint:gosec // an ETag is an MD5
	want := `"` + hex.EncodeToString(sum[:]) + `"`
	f, err := os.Open(r.watch)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	got, err := meta.XattrMeta{}.RetrieveAttribute(f, "", "", etagAttribute)
	if err != nil || string(got) != want {
		t.Errorf("the attribute %q is %s, %v; want %s", etagAttribute, got, err, want)
	}
}

func TestSweep(t *testing.T) {
	root := t.TempDir()
	temporary := filepath.Join(root, ".sgwtmp")
	upload := filepath.Join(temporary, "multipart", "hash", "id.etag-1.inprogress")
	for _, d := range []string{upload, filepath.Join(temporary, "multipart", "old", "id")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{
		filepath.Join(temporary, "abc.123"), filepath.Join(upload, "1"), filepath.Join(root, "object"),
		filepath.Join(temporary, "multipart", "old", "id", "1"),
	} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := filepath.Join(temporary, "multipart", "old", "id")
	i, err := os.Stat(long)
	if err != nil {
		t.Fatal(err)
	}
	past := i.ModTime().Add(-uploadAge)
	if err := os.Chtimes(long, past, past); err != nil {
		t.Fatal(err)
	}
	if err := sweep(root); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, strings.TrimPrefix(path, root+"/"))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{".sgwtmp/multipart/hash/id/1", "object"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
	if err := sweep(t.TempDir()); err != nil {
		t.Errorf("a new bucket: %v", err)
	}
}

func TestFileSystemWithoutAttributes(t *testing.T) {
	// /proc has none, whoever asks.
	err := proveAttributes("/proc")
	if err == nil || !strings.Contains(err.Error(), "extended attributes") || !strings.Contains(err.Error(), "/proc") {
		t.Errorf("%v", err)
	}
	if err := proveAttributes(t.TempDir()); err != nil {
		t.Error(err)
	}
}
