package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
)

// The component that stops first checks /readyz, which must already report that the daemon is not ready.
func TestStop_ReadyzFailsBeforeComponentsStop(t *testing.T) {
	t.Parallel()
	d := newTestDaemon(slog.DiscardHandler)
	health := d.newHealth()
	health.SetReady(func(context.Context) error { return nil })
	readyz := func() int {
		w := httptest.NewRecorder()
		health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/readyz", http.NoBody))
		return w.Code
	}
	group := lifecycle.NewGroup(d.log)
	var then int
	group.Start(t.Context(), "listener", func(ctx context.Context) error {
		<-ctx.Done()
		then = readyz()
		return nil
	})
	if now := readyz(); now != http.StatusOK {
		t.Fatalf("readyz returned %d while all components run", now)
	}
	d.stop(group, health)
	if then != http.StatusServiceUnavailable {
		t.Errorf("readyz returned %d when the first component stopped", then)
	}
}
