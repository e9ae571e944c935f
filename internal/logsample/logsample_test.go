package logsample

import (
	"testing"
	"time"
)

func TestLimiter_Allow(t *testing.T) {
	t.Parallel()
	now := time.Unix(100, 0)
	l := New(20, time.Second, func() time.Time { return now })
	for range 20 {
		if _, ok := l.Allow(); !ok {
			t.Fatal("Allow() = false before the limit")
		}
	}
	for range 3 {
		if _, ok := l.Allow(); ok {
			t.Fatal("Allow() = true after the limit")
		}
	}
	now = now.Add(time.Second)
	if suppressed, ok := l.Allow(); !ok || suppressed != 3 {
		t.Errorf("Allow(): got %d, %v, want 3, true", suppressed, ok)
	}
}
