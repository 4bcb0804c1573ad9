package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/scafo/scafo/internal/bucket"
)

// The sizes of the races.
const (
	racers     = 20
	raceRounds = 10
	counters   = 10 // goroutines that count
	increments = 10 // by each of them
)

// race lets all racers write at once and checks that exactly one of them won,
// that the others were refused, and that what the winner wrote is there.
func race(t *testing.T, b bucket.Bucket, key string, round int, write func(ctx context.Context, body []byte) (string, error)) string {
	t.Helper()
	start := make(chan struct{})
	var (
		mu      sync.Mutex
		winners []string // guarded by mu
		etag    string   // guarded by mu
	)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range racers {
		g.Go(func() error {
			body := fmt.Sprintf("%s by %d in round %d", key, i, round)
			<-start
			tag, err := write(ctx, []byte(body))
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				winners, etag = append(winners, body), tag
				return nil
			case errors.Is(err, bucket.ErrRefused):
				return nil
			default:
				return err
			}
		})
	}
	close(start)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(winners) != 1 {
		t.Fatalf("%s: %d winners: %q", key, len(winners), winners)
	}
	wantObject(t, b, key, winners[0], etag)
	return etag
}

func testRacingCreates(t *testing.T, b bucket.Bucket) {
	for round := range raceRounds {
		key := fmt.Sprintf("race/create/%d", round)
		race(t, b, key, round, func(ctx context.Context, body []byte) (string, error) {
			return b.Create(ctx, key, body)
		})
	}
}

func testRacingReplaces(t *testing.T, b bucket.Bucket) {
	const key = "race/replace"
	etag := mustCreate(t, b, key, "start")
	for round := range raceRounds {
		held := etag
		etag = race(t, b, key, round, func(ctx context.Context, body []byte) (string, error) {
			return b.Replace(ctx, key, held, body)
		})
	}
}

// testRacingRecreates creates what was just deleted.
func testRacingRecreates(t *testing.T, b bucket.Bucket) {
	const key = "race/again/a"
	for round := range raceRounds {
		race(t, b, key, round, func(ctx context.Context, body []byte) (string, error) {
			return b.Create(ctx, key, body)
		})
		if err := b.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
}

// testCounter counts with compare-and-swap from many goroutines: no increment is
// lost, and none counts twice.
func testCounter(t *testing.T, b bucket.Bucket) {
	const key = "race/counter"
	mustCreate(t, b, key, "0")
	g, ctx := errgroup.WithContext(t.Context())
	for range counters {
		g.Go(func() error {
			for range increments {
				if err := increment(ctx, b, key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	o, err := b.Get(t.Context(), key)
	if err != nil || string(o.Body) != strconv.Itoa(counters*increments) {
		t.Errorf("counted %s, %v; want %d", o.Body, err, counters*increments)
	}
}

func increment(ctx context.Context, b bucket.Bucket, key string) error {
	for {
		o, err := b.Get(ctx, key)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(o.Body))
		if err != nil {
			return err
		}
		_, err = b.Replace(ctx, key, o.ETag, []byte(strconv.Itoa(n+1)))
		if !errors.Is(err, bucket.ErrRefused) {
			return err
		}
	}
}

// wholeWrites is how many values testWholeValues writes.
const wholeWrites = 40

// testWholeValues reads and lists while another one writes: a reader sees one
// value or another, never a mixture and never nothing, and with it the ETag of
// that very value.
func testWholeValues(t *testing.T, b bucket.Bucket, c config) {
	const key = "race/whole"
	const size = 256 << 10
	value := func(i int) []byte {
		return append(fmt.Appendf(nil, "%04d", i), bytes.Repeat([]byte{byte('a' + i%26)}, size+i)...)
	}
	tags := make([]string, wholeWrites) // by value
	var err error
	if tags[0], err = b.Create(t.Context(), key, value(0)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	g, ctx := errgroup.WithContext(t.Context())
	g.Go(func() (err error) {
		defer close(done)
		for i := 1; i < wholeWrites; i++ {
			if tags[i], err = b.Put(ctx, key, value(i)); err != nil {
				return err
			}
		}
		return nil
	})
	const readers = 3
	var seen [readers]map[string]int // ETag to value
	for r := range readers {
		seen[r] = map[string]int{}
		g.Go(func() error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				o, err := b.Get(ctx, key)
				if err != nil {
					return err
				}
				i, err := strconv.Atoi(string(o.Body[:min(4, len(o.Body))]))
				if err != nil || i >= wholeWrites || !bytes.Equal(o.Body, value(i)) {
					return fmt.Errorf("a mixture of %d bytes beginning with %.8q", len(o.Body), o.Body)
				}
				seen[r][o.ETag] = max(i, seen[r][o.ETag])
				page, err := b.List(ctx, key, bucket.ListOptions{})
				if err != nil {
					return err
				}
				if len(page.Objects) != 1 {
					return fmt.Errorf("listed %d objects", len(page.Objects))
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, pairs := range seen {
		for etag, i := range pairs {
			// An ETag newer than its value would let a replace undo a write unseen; an
			// older one only makes a replace fail.
			if j := slices.Index(tags, etag); j < 0 || j > i || (j < i && !c.laggingETags) {
				t.Errorf("value %d came with the ETag of value %d", i, j)
			}
		}
	}
}

// modelSteps bounds one sequence of the model test.
const modelSteps = 25

// testModel compares sequences of calls with what a map would do.
func testModel(t *testing.T, b bucket.Bucket) {
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		root := fmt.Sprintf("model/%d/", run)
		keys := []string{root + "a", root + "b/c", root + "b/d", root + "b-e"}
		model := map[string][2]string{} // key to body and ETag
		tags := []string{`"00000000000000000000000000000000"`}
		ctx := t.Context()
		for step := range rapid.IntRange(1, modelSteps).Draw(rt, "steps") {
			key := rapid.SampledFrom(keys).Draw(rt, "key")
			body := fmt.Sprintf("%d/%d", run, step) // never twice: ETags may follow the content
			old, exists := model[key]
			applied := func(etag string, err error, allowed bool) {
				switch {
				case allowed && err != nil:
					rt.Fatalf("%s: %v", key, err)
				case allowed:
					model[key] = [2]string{body, etag}
					tags = append(tags, etag)
				case !errors.Is(err, bucket.ErrRefused):
					rt.Fatalf("%s: got %v, want refused", key, err)
				}
			}
			switch rapid.IntRange(0, 5).Draw(rt, "op") {
			case 0:
				etag, err := b.Create(ctx, key, []byte(body))
				applied(etag, err, !exists)
			case 1:
				with := rapid.SampledFrom(tags).Draw(rt, "etag")
				etag, err := b.Replace(ctx, key, with, []byte(body))
				applied(etag, err, exists && with == old[1])
			case 2:
				etag, err := b.Put(ctx, key, []byte(body))
				applied(etag, err, true)
			case 3:
				if err := b.Delete(ctx, key); err != nil {
					rt.Fatal(err)
				}
				delete(model, key)
			case 4:
				compareGet(ctx, rt, b, key, old, exists)
			case 5:
				compareList(ctx, rt, b, root, model)
			}
		}
		compareList(ctx, rt, b, root, model)
	})
}

func compareGet(ctx context.Context, rt *rapid.T, b bucket.Bucket, key string, want [2]string, exists bool) {
	o, err := b.Get(ctx, key)
	switch {
	case !exists && !errors.Is(err, bucket.ErrNotFound):
		rt.Fatalf("get %s: %v, want not found", key, err)
	case exists && err != nil:
		rt.Fatal(err)
	case exists && (string(o.Body) != want[0] || o.ETag != want[1]):
		rt.Fatalf("get %s: %q %s, want %q %s", key, o.Body, o.ETag, want[0], want[1])
	}
}

func compareList(ctx context.Context, rt *rapid.T, b bucket.Bucket, root string, model map[string][2]string) {
	n, last := 0, ""
	err := bucket.Walk(ctx, b, root, func(i bucket.Info) error {
		want, ok := model[i.Key]
		if !ok || i.ETag != want[1] || i.Size != int64(len(want[0])) || i.Key <= last {
			rt.Fatalf("listed %+v, want %q (known: %v)", i, want, ok)
		}
		n, last = n+1, i.Key
		return nil
	})
	if err != nil || n != len(model) {
		rt.Fatalf("listed %d of %d keys: %v", n, len(model), err)
	}
}
