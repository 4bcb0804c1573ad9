//go:build system

package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/paralleltest"
)

// call sends a request to an application and returns its answer.
func (f *fleet) call(method, url, body string) (int, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	res, text, err := f.do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	return res, text
}

// killed ends the runtime of an application at once, and waits until it answers
// again.
func (f *fleet) killed(app, url string) {
	f.t.Helper()
	p, err := f.process(app)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
	eventually(f.t, app+" answers again", func() error {
		status, body, err := f.get(url)
		if err == nil && status >= http.StatusInternalServerError {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
}

// The examples that keep state in the runtime's services, each over the end of its
// runtime and a redeploy. The digest needs the end of a minute, so it begins first
// and is looked at last.
func TestExamplesWithServices(t *testing.T) {
	paralleltest.Waits(t)
	f := newFleet(t)
	digest := f.deploy(f.example("digest"))
	if status, body := f.call(http.MethodPost, digest, "someone signed up"); status != http.StatusAccepted {
		t.Errorf("digest: %d %q", status, body)
	}
	f.killed("digest", digest)
	t.Run("notes", func(t *testing.T) { notes(t, f) })
	t.Run("jobs", func(t *testing.T) { jobs(t, f) })
	t.Run("digest", func(t *testing.T) {
		var got struct {
			Made  int64
			Lines []string
		}
		for deadline := time.Now().Add(75 * time.Second); ; time.Sleep(500 * time.Millisecond) {
			status, body, err := f.get(digest)
			if err == nil && status == http.StatusOK {
				if err := json.Unmarshal([]byte(body), &got); err != nil {
					t.Fatalf("%s: %v", body, err)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no digest: %d %s %v", status, body, err)
			}
		}
		if len(got.Lines) != 1 || got.Lines[0] != "someone signed up" || got.Made%60_000 != 0 {
			t.Errorf("%+v", got)
		}
	})
}

func notes(t *testing.T, f *fleet) {
	url := f.deploy(f.example("notes"))
	if status, body := f.call(http.MethodPost, url, "buy tea"); status != http.StatusCreated || !strings.Contains(body, `"id":1,"text":"buy tea"`) {
		t.Fatalf("%d %q", status, body)
	}
	f.call(http.MethodPost, url, "drink it")
	status, link := f.call(http.MethodPost, url+"/1/share", "")
	link = strings.TrimSpace(link)
	if status != http.StatusCreated || !strings.HasPrefix(link, url+"/shared/") {
		t.Fatalf("%d %q, want a link below %s", status, link, url)
	}
	f.killed("notes", url)
	f.deploy(f.example("notes"))
	if body := f.body(link); !strings.Contains(body, `"text":"buy tea"`) {
		t.Errorf("the link shows %q", body)
	}
	if status, _ := f.call(http.MethodDelete, url+"/1", ""); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	if body := f.body(url); !regexp.MustCompile(`^\[\{"id":2,"text":"drink it","written":\d+\}\]$`).MatchString(body) {
		t.Errorf("the notes are %s", body)
	}
	if status, _, err := f.get(link); status != http.StatusNotFound || err != nil {
		t.Errorf("the link of a deleted note: %d %v", status, err)
	}
}

func jobs(t *testing.T, f *fleet) {
	url := f.deploy(f.example("jobs"))
	begin := func(text string) string {
		t.Helper()
		status, id := f.call(http.MethodPost, url, text)
		if status != http.StatusAccepted {
			t.Fatalf("%d %q", status, id)
		}
		return strings.TrimSpace(id)
	}
	words, none := begin("three little words"), begin(" ")
	f.killed("jobs", url)
	ends := func(id, want string) {
		t.Helper()
		eventually(t, "the job ends", func() error {
			_, body, err := f.get(url + "/" + id)
			if err == nil && body != want {
				err = fmt.Errorf("%s", body)
			}
			return err
		})
	}
	ends(words, `{"status":"complete","output":"3 words"}`)
	ends(none, `{"status":"complete","output":"given up: there are no words"}`)
}
