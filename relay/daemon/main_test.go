package daemon

import (
	"log/slog"
	"os"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// newTestDaemon returns a daemon with metrics and default settings.
func newTestDaemon(log slog.Handler) *Daemon {
	d := &Daemon{cfg: &config.Config{}, log: slog.New(log), metrics: metrics.New("test")}
	d.reloads.SetMetric = d.metrics.Reloaded
	return d
}

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests mostly wait
	os.Exit(m.Run())
}
