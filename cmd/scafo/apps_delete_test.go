package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
)

func TestDeleteAsksForTheName(t *testing.T) {
	for typed, ok := range map[string]bool{"shop\n": true, "  shop \n": true, "shop": true, "Shop\n": false, "y\n": false, "yes\n": false, "\n": false, "": false, "shopping\n": false} {
		if err := matchName(strings.NewReader(typed), "shop"); (err == nil) != ok {
			t.Errorf("%q: %v", typed, err)
		}
	}
	c := newAppsDelete(&globals{})
	c.SetIn(strings.NewReader("shop\n"))
	if err := confirmDelete(c, "shop", false); err == nil || !isUsage(err) {
		t.Errorf("no terminal and no --yes: %v", err)
	}
	if err := confirmDelete(c, "shop", true); err != nil {
		t.Error(err)
	}
}

// The list is a document however many keys there are, and never held as a whole.
func TestDeletedKeysAreADocument(t *testing.T) {
	for n := range 4 {
		var b bytes.Buffer
		var want []string
		for i := range n {
			k := fmt.Sprintf("fleets/<&>/\"%d", i)
			want = append(want, k)
			if err := printKey(&b, i+1, k); err != nil {
				t.Fatal(err)
			}
		}
		if err := endKeys(&b, n); err != nil {
			t.Fatal(err)
		}
		var got struct{ Deleted []string }
		if err := json.Unmarshal(b.Bytes(), &got); err != nil || fmt.Sprint(got.Deleted) != fmt.Sprint(want) {
			t.Errorf("%d keys: %v %s", n, err, b.String())
		}
	}
}

func TestDeleteWaitsForACoordinator(t *testing.T) {
	draining := scafo.Errorf(scafo.CodeDraining, "nobody")
	missing := scafo.Errorf(scafo.CodeNotFound, "none")
	for name, c := range map[string]struct {
		says []error
		want error
		took time.Duration
	}{
		"at once":                        {[]error{nil}, nil, 0},
		"after two elections":            {[]error{draining, draining, nil}, nil, 2 * time.Second},
		"finished by another":            {[]error{draining, missing}, nil, time.Second},
		"there was none":                 {[]error{missing}, missing, 0},
		"another refusal":                {[]error{draining, errors.ErrUnsupported}, errors.ErrUnsupported, time.Second},
		"nobody within its whole minute": {nil, draining, 61 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, n := time.Now(), 0
			err := settled(context.Background(), func() error {
				if n++; c.says == nil {
					return draining
				}
				return c.says[n-1]
			})
			if !errors.Is(err, c.want) || time.Since(began) != c.took {
				t.Errorf("%s: %v after %s", name, err, time.Since(began))
			}
		})
	}
}

func TestADeployThatIsNotFoundAnyMore(t *testing.T) {
	st := scafo.DeployStatus{ID: "shop.0123456789abcdef", Application: "shop"}
	err := goneMeanwhile(scafo.Errorf(scafo.CodeNotFound, "no such deploy"), st)
	if scafo.CodeOf(err) != scafo.CodeApplicationDeleting || !strings.Contains(explain(err), "shop was deleted") {
		t.Error(err)
	}
	if other := scafo.Errorf(scafo.CodeAuthScope, "no"); goneMeanwhile(other, st) != error(other) {
		t.Error("another refusal became this one")
	}
}
