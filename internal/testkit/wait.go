package testkit

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Patience is the time that a test waits for something that must happen soon. It is long because machines that run
// tests are often busy.
const Patience = 2 * time.Minute

const (
	minPause = 2 * time.Millisecond
	maxPause = time.Second
)

// Eventually repeats probe until it returns nil. It ends the test with the last error if Poll gives up.
// Call it from the goroutine of the test; in other goroutines, use Poll.
func Eventually(t testing.TB, what string, probe func() error) {
	t.Helper()
	if err := Poll(probe); err != nil {
		t.Fatalf("waiting for %q: %v", what, err)
	}
}

// WaitFor is Eventually with a condition instead of a probe. If it fails, it prints the goroutines of the process.
func WaitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	err := Poll(func() error {
		if !ok() {
			return errNotYet
		}
		return nil
	})
	if err != nil {
		stacks := make([]byte, 4*tailBytes)
		stacks = stacks[:runtime.Stack(stacks, true)]
		t.Fatalf("waiting for %q: %v\n%s", what, err, stacks)
	}
}

// WaitForValue waits until get returns want. If it fails, it prints the last value.
func WaitForValue[T comparable](t testing.TB, what string, want T, get func() T) {
	t.Helper()
	Eventually(t, what, func() error {
		if got := get(); got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

var errNotYet = errors.New("the condition is still false")

// Poll repeats probe until it returns nil. It gives up and returns the last error if probe has returned the same error
// for Patience, or any errors for three times as long.
//
// Poll pauses ten times as long as probe takes, because on a busy machine a probe delays the very thing it waits for.
func Poll(probe func() error) error {
	start := time.Now()
	changed, last := start, ""
	for {
		probed := time.Now()
		err := probe()
		if err == nil {
			return nil
		}
		now := time.Now()
		if err.Error() != last {
			changed, last = now, err.Error()
		}
		if now.Sub(changed) > Patience || now.Sub(start) > 3*Patience {
			return fmt.Errorf("gave up after %s: %w", now.Sub(start).Round(time.Millisecond), err)
		}
		time.Sleep(min(max(minPause, 10*now.Sub(probed)), maxPause))
	}
}
