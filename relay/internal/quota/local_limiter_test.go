package quota

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLocalLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLocalLimiter[string](1, 2, 10)
		for range 2 {
			if l.IsExhausted("a") || l.Take("a") != 0 {
				t.Error("rejected within the burst")
			}
		}
		if wait := l.Take("a"); !l.IsExhausted("a") || wait != time.Second {
			t.Errorf("after the burst: got a wait of %s, want 1s", wait)
		}
		if l.Take("b") != 0 {
			t.Error("another key was rejected")
		}
		time.Sleep(time.Second)
		if l.IsExhausted("a") || l.Take("a") != 0 {
			t.Error("rejected after the wait")
		}
	})
}

func TestLocalLimiter_BoundsKeys(t *testing.T) {
	t.Parallel()
	l := NewLocalLimiter[int](1, 1, 10)
	for i := range 100 {
		l.Take(i)
		if n := len(l.byKey); n > 10 {
			t.Fatalf("got %d keys, want at most 10", n)
		}
	}
}
