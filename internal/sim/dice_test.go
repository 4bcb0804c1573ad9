package sim

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// dice is randomness that follows from the seed and from what it is for. Things that
// happen at once may then ask in any order: each gets what is its own.
type dice struct{ *rand.Rand }

func newDice(seed uint64, parts ...string) dice {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write([]byte(p)) //nolint:errcheck // it has none
		h.Write([]byte{0}) //nolint:errcheck // it has none
	}
	return dice{rand.New(rand.NewPCG(seed, h.Sum64()))} //nolint:gosec // reproducible on purpose
}

// between is a time in that range, in whole nanoseconds: so fine that no two things
// happen at the very same moment by chance.
func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)+1))
}

// chance is true with that probability.
func (d dice) chance(p float64) bool { return d.Float64() < p }

func pick[T any](d dice, of []T) T { return of[d.IntN(len(of))] }

// Read makes dice a source of random bytes: of nonces, ids and jitter.
func (d dice) Read(b []byte) (int, error) {
	var word [8]byte
	for i := 0; i < len(b); i += len(word) {
		binary.LittleEndian.PutUint64(word[:], d.Uint64())
		copy(b[i:], word[:])
	}
	return len(b), nil
}
