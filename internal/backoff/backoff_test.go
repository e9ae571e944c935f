package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff_DoublesUpToMax(t *testing.T) {
	t.Parallel()
	b := Backoff{Min: 100 * time.Millisecond, Max: 300 * time.Millisecond}
	for range 2 {
		if !b.IsReset() {
			t.Error("IsReset() = false before the first delay")
		}
		for i, want := range []time.Duration{100, 200, 300, 300} {
			want *= time.Millisecond
			if got := b.Next(); got < want*4/5 || got > want*6/5 {
				t.Errorf("delay %d: got %s, want %s ± 20 %%", i, got, want)
			}
		}
		b.Reset()
	}
}

func TestSleep_EndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Min: time.Second, Max: time.Second}
		if !b.Sleep(t.Context()) {
			t.Error("Sleep() = false, want true")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if b.Sleep(ctx) {
			t.Error("Sleep() = true after ctx ended, want false")
		}
	})
}
