package testkit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestEventuallyReturnsWhenTheProbeSucceeds(t *testing.T) {
	calls := 0
	testkit.Eventually(t, "the third call", func() error {
		if calls++; calls < 3 {
			return errors.New("too early")
		}
		return nil
	})
	testkit.WaitForValue(t, "the sixth call", 6, func() int { calls++; return calls })
	if calls != 6 {
		t.Errorf("got %d calls, want 6", calls)
	}
}

func TestPollGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		probe func(call int) error
		want  time.Duration
	}{
		"the error stays the same": {func(int) error { return errors.New("no") }, testkit.Patience},
		"the error changes":        {func(call int) error { return fmt.Errorf("no %d", call) }, 3 * testkit.Patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, calls := time.Now(), 0
				err := testkit.Poll(func() error { calls++; return c.probe(calls) })
				if want := c.probe(calls).Error(); err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
					t.Errorf("got %v, want the last error %q", err, want)
				}
				if took := time.Since(start); took < c.want || took > c.want+time.Second {
					t.Errorf("got %s, want %s", took, c.want)
				}
			})
		})
	}
}

func TestPollPausesLongerAfterSlowProbes(t *testing.T) {
	for probe, want := range map[time.Duration]time.Duration{
		0:                      2 * time.Millisecond,
		20 * time.Millisecond:  200 * time.Millisecond,
		500 * time.Millisecond: time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			start, calls := time.Now(), 0
			testkit.WaitForValue(t, "the second call", 2, func() int {
				time.Sleep(probe)
				calls++
				return calls
			})
			if got := time.Since(start) - 2*probe; got != want {
				t.Errorf("probe of %s: got a pause of %s, want %s", probe, got, want)
			}
		})
	}
}
