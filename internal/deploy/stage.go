package deploy

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/artifact"
)

// stages is the staging directory: one directory for each deploy that this node
// has not finished, named by its id. It is also how a node that was restarted
// knows which deploys were its own.
type stages struct {
	dir   string
	quota quota
}

// What lies in a deploy's directory.
const (
	artifactFile = "artifact"
	treeDir      = "tree"
	scratchDir   = "scratch"
	// jobFile is written once everything is staged: a directory without it is not
	// whole.
	jobFile = "job.json"
	// markFile lies in the staging directory itself: without it, the directory is a
	// new one, and says nothing of what the node did before.
	markFile = ".scafo-staging"
)

// quota counts bytes.
type quota struct {
	most int64
	mu   sync.Mutex
	used int64 // guarded by mu
}

func (q *quota) take(n int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n > q.most-q.used {
		return false
	}
	q.used += n
	return true
}

func (q *quota) give(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= n
}

// stage is one deploy's directory.
type stage struct {
	dir   string
	quota *quota
	seat  *seat
	taken int64 // of the quota; only its deploy's carrier touches it
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

// take asks for room for n more bytes.
func (s *stage) take(n int64) error {
	if err := s.seat.take(n); err != nil {
		return err
	}
	if !s.quota.take(n) {
		s.seat.give(n)
		return scafo.Errorf(scafo.CodeDeployOverloaded, "the artifacts that this node has staged leave no room for another one")
	}
	s.taken += n
	return nil
}

// give returns room.
func (s *stage) give(n int64) {
	s.taken -= n
	s.quota.give(n)
	s.seat.give(n)
}

// staged is what a node needs to go on with a deploy after it was restarted.
type staged struct {
	ID    string     `json:"id"`
	Bytes int64      `json:"bytes"`
	Code  scafo.Code `json:"code,omitempty"` // what is wrong with the artifact
	Fault string     `json:"fault,omitempty"`
}

// open makes the directory of a new deploy.
func (s *stages) open(id scafo.DeployID, in *seat) (*stage, error) {
	st := &stage{dir: filepath.Join(s.dir, id.String()), quota: &s.quota, seat: in}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, artifact.DiskError(err)
	}
	if err := os.Mkdir(st.dir, 0o700); err != nil {
		return nil, artifact.DiskError(err)
	}
	if err := os.Mkdir(st.path(treeDir), 0o700); err != nil {
		return nil, errors.Join(artifact.DiskError(err), st.remove())
	}
	return st, nil
}

// save says that all of the deploy is staged.
func (s *stage) save(id scafo.DeployID, fault error) error {
	doc := staged{ID: id.String(), Bytes: s.taken}
	if fault != nil {
		doc.Code, doc.Fault = scafo.CodeOf(fault), detailOf(fault)
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path(jobFile), b, 0o600); err != nil {
		return artifact.DiskError(err)
	}
	return nil
}

// remove removes the directory and gives its room back. The deploy command may
// have left directories behind that nobody may write.
func (s *stage) remove() error {
	err := os.RemoveAll(s.dir)
	if err != nil {
		_ = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
		err = os.RemoveAll(s.dir)
	}
	s.give(s.taken)
	return err
}

// begin looks at what an earlier life of the node left. complete is false where
// the directory does not tell.
func (s *stages) begin() (left []*job, complete bool, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, false, err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, false, err
	}
	for _, e := range entries {
		if e.Name() == markFile {
			complete = true
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		id, ok := scafo.ParseDeployID(e.Name())
		if !ok || !e.IsDir() {
			if err := os.RemoveAll(path); err != nil {
				return nil, false, err
			}
			continue
		}
		left = append(left, s.resume(id, path))
	}
	if !complete {
		err = os.WriteFile(filepath.Join(s.dir, markFile), nil, 0o600)
	}
	return left, complete, err
}

// resume is the job of a directory that was left behind.
func (s *stages) resume(id scafo.DeployID, path string) *job {
	j := newJob(id)
	j.resumed = true
	j.stage = &stage{dir: path, quota: &s.quota}
	lost := scafo.Errorf(scafo.CodeDeployTimeout, "the node was restarted before the artifact was whole")
	b, err := os.ReadFile(j.stage.path(jobFile))
	if err != nil {
		j.fault = lost
		return j
	}
	var doc staged
	if err := json.Unmarshal(b, &doc); err != nil || doc.ID != id.String() {
		j.fault = lost
		return j
	}
	// It was within the bound when it was taken in.
	s.quota.mu.Lock()
	s.quota.used += doc.Bytes
	s.quota.mu.Unlock()
	j.stage.taken = doc.Bytes
	if doc.Code != "" {
		j.fault = scafo.Errorf(doc.Code, "%s", doc.Fault)
	}
	// What the deploy command left is not what it will find.
	if err := os.RemoveAll(j.stage.path(scratchDir)); err != nil && j.fault == nil {
		j.fault = artifact.DiskError(err)
	}
	return j
}
