package route

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/scafo/scafo"
)

// The document of ten thousand applications is encoded once for each change and each
// node that is preferred, not once for each poll; nor is it rendered for each.
func TestTenThousandApplicationsEncodeOnce(t *testing.T) {
	const applications, pollers, polls = 10_000, 4, 500
	w := newWorld("a", "b")
	for i := range applications {
		w.app(fmt.Sprintf("app-%05d", i), "a", "b")
	}
	var p Publisher
	r := NewRenderings(func(prefer string) (scafo.FleetRouting, string, bool) {
		e := p.Get(prefer)
		return e.Doc, e.ETag, true
	}, Traefik{}, nil)
	publish := func(want bool) {
		t.Helper()
		doc, _ := Build(w.in)
		if len(doc.Routes) < applications {
			t.Fatalf("%d routes", len(doc.Routes))
		}
		if changed, err := p.Publish(doc, time.Unix(int64(len(doc.Routes)), 0)); changed != want || err != nil {
			t.Fatal(changed, err)
		}
	}
	poll := func() {
		var wg sync.WaitGroup
		for range pollers {
			wg.Go(func() {
				first, _, _, _ := r.Render(FormatTraefik, "b")
				for range polls {
					if e := p.Get(""); len(e.Body) < applications*100 {
						t.Errorf("%d bytes", len(e.Body))
						return
					}
					p.Get("b")
					// The very bytes, not a copy that was made anew.
					if again, _, _, _ := r.Render(FormatTraefik, "b"); &again[0] != &first[0] {
						t.Error("it was rendered again")
						return
					}
				}
			})
		}
		wg.Wait()
	}
	encoded := func(want int) {
		t.Helper()
		if p.encodeds != want {
			t.Errorf("%d polls encoded %d times, want %d", 2*pollers*polls, p.encodeds, want)
		}
	}
	publish(true)
	poll()
	encoded(2)
	publish(false)
	poll()
	encoded(2)
	w.app("one-more", "a")
	publish(true)
	poll()
	encoded(4)
}
