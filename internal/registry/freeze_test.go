package registry

import (
	"errors"
	"testing"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/memory"
)

// A lift whose sender gave up is still under way when somebody freezes again: it must
// not take the freeze that was answered meanwhile.
func TestALateLiftDoesNotTakeALaterFreeze(t *testing.T) {
	b := memory.New()
	r := New(b, Options{})
	first, created, err := r.FreezeDeploys(t.Context(), "root", "moving")
	if err != nil || !created {
		t.Fatal(created, err)
	}
	seen, err := b.Get(t.Context(), FreezeKey) // as the lift read it
	if err != nil {
		t.Fatal(err)
	}
	again, created, err := r.FreezeDeploys(t.Context(), "ann", "because")
	if err != nil || created {
		t.Fatal(created, err)
	}
	if again.By != first.By || again.Reason != first.Reason || !again.FrozenAt.Equal(first.FrozenAt) {
		t.Errorf("%+v became %+v", first, again)
	}
	if _, err := b.Replace(t.Context(), FreezeKey, seen.ETag, []byte(`{"v":1,"tombstone":true}`)); !errors.Is(err, bucket.ErrRefused) {
		t.Errorf("the late lift: %v", err)
	}
}
