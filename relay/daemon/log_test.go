package daemon

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestLogRetention_HalfOfMemoryByDefault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ maxBytes, maxMemory, want int64 }{
		{0, 0, 0}, {0, 1000, 250}, {600, 1000, 300}, {600, 0, 300},
	} {
		cfg := &config.Config{}
		cfg.Redis.Partitions, cfg.Redis.Retention.MaxBytes = 2, config.Size(tt.maxBytes)
		a := &Daemon{cfg: cfg}
		if got := a.logRetention(tt.maxMemory).MaxBytes; got != tt.want {
			t.Errorf("max_bytes %d, memory %d: got %d per partition, want %d", tt.maxBytes, tt.maxMemory, got, tt.want)
		}
	}
}

func TestDaemon_ReportsLag(t *testing.T) {
	t.Parallel()
	r := startDaemon(t, &fakeSink{}, memoryURL, "")
	r.publish("container.created")
	testkit.WaitFor(t, "the metric to say that nothing waits", func() bool {
		page := httptest.NewRecorder()
		r.app.metrics.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		return strings.Contains(page.Body.String(), "hubrelay_stream_lag_seconds{partition=\"0\"} 0\n")
	})
}
