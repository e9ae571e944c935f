package daemon

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

func TestMaxClients(t *testing.T) {
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
			t.Errorf("%d clients, %d files: got %d, want %d", tt.wanted, tt.files, got, tt.want)
		}
	}
	if files := openFiles(); files < 0 {
		t.Errorf("got limit of %d open files", files)
	}
}

func TestConnLimits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		total, perIP, files int
		want                httpserver.ConnLimits
	}{
		{0, 0, 0, httpserver.ConnLimits{}},
		{50, 0, 0, httpserver.ConnLimits{Total: 50, PerIP: 25}},
		{0, 0, 1024, httpserver.ConnLimits{Total: 832, PerIP: 416}},
		{0, 832, 1024, httpserver.ConnLimits{Total: 832, PerIP: 832}},
		{5000, 10, 1024, httpserver.ConnLimits{Total: 832, PerIP: 10}},
		{0, 0, 20_000, httpserver.ConnLimits{Total: 18_500, PerIP: 9250}},
	} {
		cfg := config.Server{MaxConnections: tt.total, MaxConnectionsPerIP: tt.perIP}
		if got := connLimits(cfg, tt.files); got != tt.want {
			t.Errorf("%d and %d connections, %d files: got %+v, want %+v", tt.total, tt.perIP, tt.files, got, tt.want)
		}
	}
}

// TestClientLimit_IsLogged checks the log records and the metric, including the source of the limit.
func TestClientLimit_IsLogged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wanted, files int
		log, metric   string
	}{
		{
			0, 1024,
			`level=INFO msg="number of clients is limited" limit=768 limited_by="open files (ulimit -n, ` +
				`LimitNOFILE=)" open_files=1024`,
			"768",
		},
		{
			700, 1024, `level=INFO msg="number of clients is limited" limit=700 limited_by=websocket.max_connections`,
			"700",
		},
		{5000, 1024, `level=WARN msg="limit of open files is too low for websocket.max_connections"`, "768"},
		{0, 0, `level=INFO msg="number of clients is unlimited"`, "+Inf"},
	} {
		var log bytes.Buffer
		a := &Daemon{log: slog.New(slog.NewTextHandler(&log, nil)), metrics: metrics.New("test")}
		a.clientLimit(tt.wanted, tt.files)
		if !strings.Contains(log.String(), tt.log) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d clients, %d files: got log %s", tt.wanted, tt.files, &log)
		}
		w := httptest.NewRecorder()
		a.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if !strings.Contains(w.Body.String(), "hubrelay_stream_clients_limit "+tt.metric+"\n") {
			t.Errorf("%d clients, %d files: metric is not %s", tt.wanted, tt.files, tt.metric)
		}
	}
}
