package relay_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !relay.Sleep(t.Context(), time.Hour) || time.Since(began) != time.Hour {
			t.Errorf("waited for %s", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if began = time.Now(); relay.Sleep(ctx, time.Hour) || time.Since(began) != time.Minute {
			t.Errorf("waited for %s after the end of its context", time.Since(began))
		}
	})
}
