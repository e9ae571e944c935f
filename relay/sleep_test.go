package relay_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !relay.Sleep(t.Context(), time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("Sleep waited %s, want 1h", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if start = time.Now(); relay.Sleep(ctx, time.Hour) || time.Since(start) != time.Minute {
			t.Errorf("Sleep waited %s, want 1m", time.Since(start))
		}
	})
}
