package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// TestReadyzSaysNoBeforeAnythingEnds has the part that ends first, as the public listener does, ask for it.
func TestReadyzSaysNoBeforeAnythingEnds(t *testing.T) {
	t.Parallel()
	a := &App{cfg: &config.Config{}, health: adminserver.NewHealth(adminserver.HealthOptions{})}
	readyz := func() int {
		w := httptest.NewRecorder()
		a.health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/readyz", http.NoBody))
		return w.Code
	}
	p := newParts(slog.New(slog.DiscardHandler))
	var then int
	p.startComponent(t.Context(), "listener", func(ctx context.Context) error {
		<-ctx.Done()
		then = readyz()
		return nil
	})
	if now := readyz(); now != http.StatusOK {
		t.Fatalf("readyz says %d while everything runs", now)
	}
	a.stop(p)
	if then != http.StatusServiceUnavailable {
		t.Errorf("readyz said %d when the first part was told to end", then)
	}
}
