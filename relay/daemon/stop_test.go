package daemon

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// The component that stops first checks /readyz, which must already report that the daemon is not ready.
func TestStop_ReadyzFailsBeforeComponentsStop(t *testing.T) {
	t.Parallel()
	a := &Daemon{cfg: &config.Config{}, health: adminserver.NewHealth(adminserver.HealthOptions{})}
	readyz := func() int {
		w := httptest.NewRecorder()
		a.health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/readyz", http.NoBody))
		return w.Code
	}
	p := newComponents(testkit.Log(t))
	var then int
	p.startComponent(t.Context(), "listener", func(ctx context.Context) error {
		<-ctx.Done()
		then = readyz()
		return nil
	})
	if now := readyz(); now != http.StatusOK {
		t.Fatalf("readyz returned %d while all components run", now)
	}
	a.stop(p)
	if then != http.StatusServiceUnavailable {
		t.Errorf("readyz returned %d when the first component stopped", then)
	}
}
