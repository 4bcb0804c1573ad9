package trial_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/workerd/trial"
	"github.com/scafo/scafo/internal/workerd/workerdtest"
)

// A loop that allocates outside of the handlers fails its deploy with a sentence, and
// not the machine.
func TestAllocationLoops(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"buffers": "const a = []; for (;;) a.push(new Uint8Array(1 << 24).fill(1)); export default {}",
		"heap":    "const a = []; for (;;) a.push({ a: [1, 2, 3], s: 's' + a.length }); export default {}",
		"strings": "let s = 'x'; const a = []; for (;;) { s = s + s.slice(0, 1 << 20); a.push(s + a.length); } export default {}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			_, err := trial.RunWithin(t.Context(), workerdtest.Path(t), bundle(t, code), 192<<20)
			var refused *trial.Error
			if !errors.As(err, &refused) || !strings.HasPrefix(refused.Sentence, "it took more than the 192 MiB of memory that it may have, before it was ready") {
				t.Errorf("after %s: %v", time.Since(begun), err)
			}
		})
	}
	t.Run("one that needs much and starts", func(t *testing.T) {
		t.Parallel()
		code := "const a = new Uint8Array(100 << 20).fill(1); export default { fetch() { return new Response(String(a.length)) } }"
		if _, err := trial.RunWithin(t.Context(), workerdtest.Path(t), bundle(t, code), 192<<20); err != nil {
			t.Error(err)
		}
	})
}
