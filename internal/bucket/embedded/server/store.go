package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
	"golang.org/x/sync/semaphore"
)

// Limits of the store.
const (
	// maxActions bounds the calls that touch the disk at once.
	maxActions = 64
	// ioBuffer is the buffer of each write.
	ioBuffer = 128 << 10
	// earlySync is the size from which content is synced outside the commit lock,
	// so that nobody waits for much of it there.
	earlySync = 256 << 10
	maxCopy   = 5 << 30 // as in S3
	// rereads bounds how often a read that met a write looks again.
	rereads = 100
)

var _ backend.Backend = (*store)(nil)

// store is versitygw's POSIX backend, made safe:
//
//   - What is acknowledged is on the disk: content and attributes before the file
//     gets its name, then the folders. The backend itself never syncs.
//   - A conditional put and a conditional delete of a key exclude each other. The
//     backend takes a lock for the one and none for the other, which loses
//     acknowledged writes.
//   - A read answers the ETag of the very content that it answers.
type store struct {
	*posix.Posix
	folders *folders
	slots   *semaphore.Weighted

	// commit is held for reading from before a write makes its folders and decides
	// whether its condition holds until its names are on the disk, and for writing
	// while something is removed. So no removal comes between a write's condition
	// and its effect, and no folder is removed below a name that is being put on the
	// disk. One lock for all keys is enough: removals are short, since what they
	// sync they sync afterwards.
	commit sync.RWMutex
}

func newStore(data string, d disk) (*store, error) {
	opts := posix.PosixOpts{
		Concurrency: maxActions, IOBufferSize: ioBuffer, CopyObjectThreshold: maxCopy,
		// Unnamed temporary files would be given visible names on the way; hidden ones
		// are swept at the next start.
		ForceNoTmpFile: true,
		// One process serves a directory (see state.Lock), so its own locks are enough.
		ForceNoObjLockFile: true,
	}
	opts.SetNewDirPerm(0o700)
	opts.SetNewFilePerm(0o600)
	p, err := posix.New(data, durableMeta{disk: d}, opts)
	if err != nil {
		return nil, err
	}
	return &store{Posix: p, folders: newFolders(d), slots: semaphore.NewWeighted(maxActions)}, nil
}

// PutObject implements backend.Backend.
func (s *store) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return s3response.PutObjectOutput{}, err
	}
	defer s.slots.Release(1)
	c := &commit{store: s}
	defer c.unlock()
	in.Body = c.lockAtEnd(in.Body)
	if in.Key != nil && strings.HasSuffix(*in.Key, "/") {
		c.lock() // a folder: its content, which is none, is not read
	}
	out, err := s.Posix.PutObjectWithPostFunc(ctx, in, func(f *os.File) error {
		// All content is written; condition, attributes and name come next.
		i, err := f.Stat()
		if err != nil || i.Size() < earlySync {
			return err
		}
		c.unlock() // a folder that is removed now is made again
		defer c.lock()
		return s.folders.disk.syncFile(f)
	})
	if err != nil {
		return out, err
	}
	if err := s.folders.persist(*in.Bucket, strings.TrimSuffix(*in.Key, "/")); err != nil {
		return s3response.PutObjectOutput{}, fmt.Errorf("sync folders: %w", err)
	}
	return out, nil
}

// commit is one write's share of store.commit.
type commit struct {
	store  *store
	locked bool
}

func (c *commit) lock() {
	if !c.locked {
		c.store.commit.RLock()
		c.locked = true
	}
}

func (c *commit) unlock() {
	if c.locked {
		c.locked = false
		c.store.commit.RUnlock()
	}
}

// lockAtEnd takes the lock once the content is read to its end: not earlier,
// since a client may take its time, and not later, since the backend then makes
// the folders, which fails when they are removed at that moment.
func (c *commit) lockAtEnd(body io.Reader) io.Reader {
	if body == nil {
		return nil
	}
	r := &endReader{body, c}
	if sum, ok := body.(middlewares.ChecksumReader); ok {
		return struct { // the backend asks for these as well
			io.Reader
			checksums
		}{r, sum}
	}
	return r
}

type checksums interface {
	Algorithm() string
	Checksum() string
}

type endReader struct {
	io.Reader
	commit *commit
}

func (r *endReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.commit.lock()
	}
	return n, err
}

// CopyObject implements backend.Backend.
func (s *store) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	s.commit.RLock()
	defer s.commit.RUnlock()
	out, err := s.Posix.CopyObject(ctx, in)
	if err != nil {
		return out, err
	}
	if err := s.folders.persist(*in.Bucket, strings.TrimSuffix(*in.Key, "/")); err != nil {
		return s3response.CopyObjectOutput{}, fmt.Errorf("sync folders: %w", err)
	}
	return out, nil
}

// CompleteMultipartUpload implements backend.Backend.
func (s *store) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	s.commit.RLock()
	defer s.commit.RUnlock()
	out, version, err := s.Posix.CompleteMultipartUpload(ctx, in)
	if err != nil {
		return out, version, err
	}
	if err := s.folders.persist(*in.Bucket, *in.Key); err != nil {
		return s3response.CompleteMultipartUploadResult{}, "", fmt.Errorf("sync folders: %w", err)
	}
	return out, version, nil
}

// CreateMultipartUpload implements backend.Backend.
func (s *store) CreateMultipartUpload(ctx context.Context, in s3response.CreateMultipartUploadInput) (s3response.InitiateMultipartUploadResult, error) {
	out, err := s.Posix.CreateMultipartUpload(ctx, in)
	if err != nil {
		return out, err
	}
	if err := s.persistUploads(*in.Bucket, *in.Key); err != nil {
		return s3response.InitiateMultipartUploadResult{}, err
	}
	return out, nil
}

// UploadPart implements backend.Backend.
func (s *store) UploadPart(ctx context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	out, err := s.Posix.UploadPart(ctx, in)
	if err != nil {
		return out, err
	}
	return out, s.persistUpload(*in.Bucket, *in.Key, *in.UploadId)
}

// UploadPartCopy implements backend.Backend.
func (s *store) UploadPartCopy(ctx context.Context, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	out, err := s.Posix.UploadPartCopy(ctx, in)
	if err != nil {
		return out, err
	}
	return out, s.persistUpload(*in.Bucket, *in.Key, *in.UploadId)
}

// DeleteObject implements backend.Backend.
func (s *store) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.slots.Release(1)
	out, dir, err := s.remove(ctx, in)
	if err != nil {
		return out, err
	}
	if err := s.folders.persistRemoval(*in.Bucket, dir); err != nil {
		return nil, fmt.Errorf("sync folders: %w", err)
	}
	return out, nil
}

func (s *store) remove(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, string, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	out, err := s.Posix.DeleteObject(ctx, in)
	if err != nil {
		return out, "", err
	}
	return out, s.folders.removed(*in.Bucket, strings.TrimSuffix(*in.Key, "/")), nil
}

// DeleteObjects implements backend.Backend.
func (s *store) DeleteObjects(ctx context.Context, in *s3.DeleteObjectsInput) (s3response.DeleteResult, error) {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return s3response.DeleteResult{}, err
	}
	defer s.slots.Release(1)
	out, dirs, err := s.removeAll(ctx, in)
	if err != nil {
		return out, err
	}
	for dir := range dirs {
		if err := s.folders.persistRemoval(*in.Bucket, dir); err != nil {
			return s3response.DeleteResult{}, fmt.Errorf("sync folders: %w", err)
		}
	}
	return out, nil
}

func (s *store) removeAll(ctx context.Context, in *s3.DeleteObjectsInput) (s3response.DeleteResult, map[string]struct{}, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	out, err := s.Posix.DeleteObjects(ctx, in)
	if err != nil {
		return out, nil, err
	}
	dirs := map[string]struct{}{}
	for _, d := range out.Deleted {
		if d.Key != nil {
			dirs[s.folders.removed(*in.Bucket, strings.TrimSuffix(*d.Key, "/"))] = struct{}{}
		}
	}
	return out, dirs, nil
}

// GetObject implements backend.Backend. The backend reads the ETag by name and
// then opens the file by name; a write in between would pair the old ETag with
// the new content.
func (s *store) GetObject(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	for range rereads {
		out, err := s.Posix.GetObject(ctx, in)
		if err != nil || out == nil || out.Body == nil || out.ETag == nil {
			return out, err
		}
		m := durableMeta{}
		var now []byte
		if f, ok := out.Body.(*os.File); ok {
			now, err = m.RetrieveAttribute(f, "", "", etagAttribute)
		} else {
			now, err = m.RetrieveAttribute(nil, *in.Bucket, *in.Key, etagAttribute)
		}
		if errors.Is(err, meta.ErrNoSuchKey) {
			now, err = nil, nil // a file that somebody put there by hand
		}
		if err == nil && string(now) == *out.ETag {
			return out, nil
		}
		_ = out.Body.Close()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the object changes faster than it can be read")
}

// CreateBucket implements backend.Backend.
func (s *store) CreateBucket(ctx context.Context, in *s3.CreateBucketInput, acl []byte) error {
	if err := s.Posix.CreateBucket(ctx, in, acl); err != nil {
		return err
	}
	return s.folders.disk.syncDir(".")
}

// DeleteBucket implements backend.Backend. The directory has one bucket, which
// stays.
func (s *store) DeleteBucket(context.Context, string) error {
	return s3err.GetAPIError(s3err.ErrAccessDenied)
}

func (s *store) String() string { return "embedded" }

// persistUpload syncs the folder of an upload's parts.
func (s *store) persistUpload(bucket, key, upload string) error {
	if err := s.folders.disk.syncDir(filepath.Join(uploadsDir(bucket, key), upload)); err != nil {
		return fmt.Errorf("sync folders: %w", err)
	}
	return nil
}

// persistUploads syncs the folder of a key's uploads, and those above it.
func (s *store) persistUploads(bucket, key string) error {
	for dir := uploadsDir(bucket, key); ; dir = filepath.Dir(dir) {
		if err := s.folders.disk.syncDir(dir); err != nil {
			return fmt.Errorf("sync folders: %w", err)
		}
		if dir == bucket {
			return nil
		}
	}
}

// uploadsDir is where the backend keeps the unfinished uploads of a key.
func uploadsDir(bucket, key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(bucket, posix.MetaTmpMultipartDir, hex.EncodeToString(sum[:]))
}
