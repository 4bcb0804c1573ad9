package main

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
)

// A child that was up is started again; one that never was ends it.
func TestKeepChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, greetings := 0, 0
		broken := errors.New("the port is taken")
		err := keepChild(t.Context(), slog.New(slog.DiscardHandler), func(ready func()) error {
			if runs++; runs == 4 {
				return broken
			}
			ready()
			return errors.New("killed")
		}, func() { greetings++ })
		if !errors.Is(err, broken) || runs != 4 || greetings != 1 {
			t.Errorf("%v after %d runs, %d greetings", err, runs, greetings)
		}
		// One that was told to end is not started again.
		runs = 0
		err = keepChild(t.Context(), slog.New(slog.DiscardHandler), func(ready func()) error {
			runs++
			ready()
			return nil
		}, nil)
		if err != nil || runs != 1 {
			t.Errorf("%v after %d runs", err, runs)
		}
	})
}
