//go:build system

package system

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// visitRate is how many requests a second the visitors of the machines make together.
const visitRate = 200

// visit is one request that was answered, or not.
type visit struct {
	application string
	at          time.Time // sent
	took        time.Duration
	failed      string
}

// visitors ask applications at a steady rate, whatever the answers, until they stop.
type visitors struct {
	client *http.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	visits []visit      // guarded by mu
	counts map[int]bool // numbers that the counter has given away; guarded by mu
	twice  []int        // guarded by mu
}

func startVisitors(t testing.TB, client *http.Client, applications []string) *visitors {
	v := &visitors{client: &http.Client{Transport: client.Transport, Timeout: 15 * time.Second}, counts: map[int]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	v.wg.Go(func() {
		tick := time.NewTicker(time.Second / visitRate)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			v.wg.Go(func() { v.visit(applications[i%len(applications)]) })
		}
	})
	t.Cleanup(v.stop)
	return v
}

func (v *visitors) stop() {
	v.cancel()
	v.wg.Wait()
}

var digits = regexp.MustCompile(`\d+`)

func (v *visitors) visit(application string) {
	one := visit{application: application, at: time.Now()}
	res, err := v.client.Get("http://" + application + ".apps.test/")
	body := ""
	if err != nil {
		one.failed = err.Error()
	} else {
		b, rerr := io.ReadAll(res.Body)
		res.Body.Close()
		body = string(b)
		if rerr != nil || res.StatusCode != http.StatusOK {
			one.failed = fmt.Sprintf("%d %.80q %v", res.StatusCode, body, rerr)
		}
	}
	one.took = time.Since(one.at)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.visits = append(v.visits, one)
	if application != "counter" || one.failed != "" {
		return
	}
	n, err := strconv.Atoi(digits.FindString(body))
	if err != nil || v.counts[n] {
		v.twice = append(v.twice, n)
	}
	v.counts[n] = true
}

// tally is what became of the requests to one application.
type tally struct {
	asked, failed int
	silence       time.Duration // the longest time without an answer
	first         string        // of the failures
}

// since takes what was asked from a moment on, and forgets everything.
func (v *visitors) since(from time.Time) map[string]*tally {
	v.mu.Lock()
	visits := v.visits
	v.visits = nil
	v.mu.Unlock()
	slices.SortFunc(visits, func(a, b visit) int { return a.at.Add(a.took).Compare(b.at.Add(b.took)) })
	out, last := map[string]*tally{}, map[string]time.Time{}
	for _, one := range visits {
		done := one.at.Add(one.took)
		if done.Before(from) {
			continue
		}
		c := out[one.application]
		if c == nil {
			c = &tally{}
			out[one.application], last[one.application] = c, from
		}
		c.asked++
		if one.failed != "" {
			if c.failed++; c.first == "" {
				c.first = one.failed
			}
			continue
		}
		c.silence = max(c.silence, done.Sub(last[one.application]))
		last[one.application] = done
	}
	return out
}

// lostWrites are numbers that the counter has given away twice.
func (v *visitors) lostWrites() (twice []int, answered int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.twice), len(v.counts)
}

func tallies(m map[string]*tally) string {
	var parts []string
	for _, name := range []string{"plain", "single", "counter"} {
		if c := m[name]; c != nil {
			parts = append(parts, fmt.Sprintf("%s %d of %d failed, at most %s without an answer", name, c.failed, c.asked, c.silence.Round(10*time.Millisecond)))
		}
	}
	return strings.Join(parts, "; ")
}
