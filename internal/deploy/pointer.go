package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/mistake"
	"github.com/scafo/scafo/internal/registry"
)

// pointerName is the runtime's pointer to the version that it serves, beneath an
// application's prefix.
const pointerName = "deploy/current.json"

// pointerTries bounds the tries to put a pointer back.
const pointerTries = 8

func pointerKey(app, uid string) string { return registry.RuntimePrefix(app, uid) + pointerName }

// pointer reads the pointer's bytes; nil when there is none.
func (s *Service) pointer(ctx context.Context, app, uid string) ([]byte, error) {
	o, err := s.c.Bucket.Get(ctx, pointerKey(app, uid))
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, scafo.Wrap(err, scafo.CodeStoreUnavailable, "the runtime's pointer cannot be read")
	}
	return o.Body, nil
}

// pointerVersion is the version that a pointer names; empty for none.
func pointerVersion(b []byte) string {
	var p struct {
		Version string `json:"version"`
	}
	if b == nil || json.Unmarshal(b, &p) != nil {
		return ""
	}
	return p.Version
}

// keepPointer is a pointer as a deploy's record keeps it.
func keepPointer(b []byte) (json.RawMessage, error) {
	if b == nil {
		return json.RawMessage("null"), nil
	}
	if !utf8.Valid(b) {
		return nil, scafo.Errorf(scafo.CodePublishFailed, "the runtime's pointer in the bucket is no text")
	}
	return json.Marshal(string(b))
}

// keptPointer is what keepPointer kept; ok is false for a deploy that has not
// begun to publish.
func keptPointer(kept json.RawMessage) (b []byte, ok bool) {
	if len(kept) == 0 {
		return nil, false
	}
	var text *string
	if json.Unmarshal(kept, &text) != nil {
		return nil, false
	}
	if text == nil {
		return nil, true
	}
	return []byte(*text), true
}

// putBack puts the pointer back to what it was before a deploy published. version
// is what the deploy published; empty where nobody knows whether it did, and then
// whatever the application's record does not agree with is put back.
//
// It leaves the pointer alone when it names another version, when another deploy
// holds the application, when the record says that the version is the application's,
// and when there was none before: an application without a recorded version is placed
// nowhere, so that nobody reads its pointer, and the store has no conditional DELETE.
// One that it carries out twice, or minutes late, would take a later deploy's pointer.
//
// The pointer is read before the record, and replaced only as it
// was read: who takes the application after this looked, and publishes, is not
// undone.
func (s *Service) putBack(ctx context.Context, d scafo.Deploy, version string) error {
	previous, began := keptPointer(d.Previous)
	if previous == nil && began && mistake.Made(mistake.PointerDeleted) {
		return s.c.Bucket.Delete(ctx, pointerKey(d.Application, d.UID))
	}
	if !began || previous == nil {
		return nil
	}
	key := pointerKey(d.Application, d.UID)
	var last error
	for range pointerTries {
		o, err := s.c.Bucket.Get(ctx, key)
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			return nil
		case err != nil:
			return scafo.Wrap(err, scafo.CodeStoreUnavailable, "the runtime's pointer cannot be read")
		case bytes.Equal(o.Body, previous):
			return nil
		}
		mine, err := s.undoes(ctx, d, pointerVersion(o.Body), version, pointerVersion(previous))
		if err != nil || !mine {
			return err
		}
		if _, err = s.c.Bucket.Replace(ctx, key, o.ETag, previous); err == nil {
			s.log.Info("the runtime's pointer was put back", "application", d.Application, "deploy", d.ID, "from", pointerVersion(o.Body), "to", pointerVersion(previous))
			return nil
		}
		last = err
		if !errors.Is(err, bucket.ErrRefused) && !errors.Is(err, bucket.ErrUnknown) {
			break
		}
	}
	return scafo.Wrap(last, scafo.CodeStoreUnavailable, "the runtime's pointer could not be put back")
}

// undoes says whether a pointer that names that version is the deploy's to undo.
func (s *Service) undoes(ctx context.Context, d scafo.Deploy, named, published, previous string) (bool, error) {
	if published != "" && named != published || named == previous {
		return false, nil
	}
	doc, err := registry.Load[scafo.Application](ctx, s.c.Registry, registry.ApplicationKey(d.Application))
	if err != nil {
		return false, err
	}
	app := doc.Value
	switch {
	case !doc.Exists || app.UID != d.UID:
		return false, nil
	case app.Publishing != nil && app.Publishing.Deploy != d.ID:
		return false, nil
	case app.Publishing == nil && app.Deployment != previous:
		return false, nil
	case app.Deployment == named && app.DeploymentSeq != d.Seq:
		return false, nil
	case app.Deployment == named && published == "":
		return false, nil
	}
	return true, nil
}

// Abandoned frees what a deploy holds that nobody carries out any more, once its
// record says so: the runtime's pointer, if the deploy moved it without recording
// what it published, and its place in the application. A deploy that its own node saw
// fail, and could not undo, is undone.
func (s *Service) Abandoned(ctx context.Context, d scafo.Deploy) error {
	_, began := keptPointer(d.Previous)
	if began && d.State == scafo.DeployFailed && d.Code != scafo.CodeDeployTimeout {
		if err := s.unrecord(ctx, d, d.Deployment); err != nil {
			return err
		}
	}
	if err := s.putBack(ctx, d, ""); err != nil {
		return err
	}
	return s.release(ctx, d)
}

// release gives the application's slot back, if the deploy has it.
func (s *Service) release(ctx context.Context, d scafo.Deploy) error {
	_, err := registry.Update(ctx, s.c.Registry, registry.ApplicationKey(d.Application), releasing(d))
	return err
}

func releasing(d scafo.Deploy) func(doc *registry.Doc[scafo.Application]) error {
	return func(doc *registry.Doc[scafo.Application]) error {
		if mistake.Made(mistake.SlotNeverFreed) || !doc.Exists || doc.Value.UID != d.UID || doc.Value.Publishing == nil || doc.Value.Publishing.Deploy != d.ID {
			return registry.ErrKeep
		}
		doc.Value.Publishing = nil
		return nil
	}
}
