package daemon

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
)

func TestMostClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ wanted, files, want int }{
		{0, 0, 0},
		{50, 0, 50},
		{0, 20_000, 18_000},
		{0, 1024, 768},
		{0, 100, 50},
		{700, 1024, 700},
		{5000, 1024, 768},
	} {
		if got := maxClients(tt.wanted, tt.files); got != tt.want {
			t.Errorf("%d of %d files: %d, want %d", tt.wanted, tt.files, got, tt.want)
		}
	}
	if files := openFiles(); files < 0 {
		t.Errorf("%d files", files)
	}
}

// TestLimitOfClientsIsTold looks at what an operator sees of the limit, above all where it comes from.
func TestLimitOfClientsIsTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wanted, files int
		log, metric   string
	}{
		{0, 1024, `level=INFO msg="clients of the stream are limited" clients=768 limited_by="open files (ulimit -n, LimitNOFILE=)" open_files=1024`, "768"},
		{700, 1024, `level=INFO msg="clients of the stream are limited" clients=700 limited_by=websocket.max_connections`, "700"},
		{5000, 1024, "level=WARN msg=\"fewer clients can be served than websocket.max_connections says", "768"},
		{0, 0, `level=INFO msg="clients of the stream are not limited"`, "+Inf"},
	} {
		var log bytes.Buffer
		a := &App{log: slog.New(slog.NewTextHandler(&log, nil)), metrics: adminserver.NewMetrics("test")}
		a.clientLimit(tt.wanted, tt.files)
		if !strings.Contains(log.String(), tt.log) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d of %d files: the log says %s", tt.wanted, tt.files, &log)
		}
		w := httptest.NewRecorder()
		a.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if !strings.Contains(w.Body.String(), "hubrelay_stream_clients_limit "+tt.metric+"\n") {
			t.Errorf("%d of %d files: the metric is not %s", tt.wanted, tt.files, tt.metric)
		}
	}
}
