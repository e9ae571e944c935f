package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// While Redis is unreachable, each configuration is logged once, although the errors of the attempts differ.
func TestApplySinks_LogsOncePerConfiguration(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var down atomic.Bool
	var dials atomic.Int64
	c, err := redisconn.Open(t.Context(),
		redisconn.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if down.Load() {
				return nil, &net.OpError{
					Op: "dial", Net: "tcp", Err: fmt.Errorf("from port %d: %w", dials.Add(1), errors.ErrUnsupported),
				}
			}
			return new(net.Dialer).DialContext(ctx, "unix", server.Socket)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var log bytes.Buffer
	d := newTestDaemon(slog.NewTextHandler(&log, nil))
	d.sinks, err = delivery.OpenSinks(nil, delivery.SinkOptions{Metrics: d.metrics, Logger: d.log})
	if err != nil {
		t.Fatal(err)
	}
	s := d.newStores(c)
	deliveries, err := d.newDeliveries(s, nil, &lease.Node{Name: "1"}, nil, notice.NewPublisher(notice.Options{
		Retries: &s.deliveries.Retries, States: &s.deliveries.States,
	}), streamid.CursorKey{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &reloader{Daemon: d, deliveries: deliveries, applied: d.cfg, desired: make(chan *config.Config, 1)}
	down.Store(true)
	server.Kill()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- r.applySinks(ctx) }()
	for range 2 {
		before := dials.Load()
		r.desired <- &config.Config{Sinks: map[string]config.Sink{"new": {}}}
		testkit.WaitFor(t, "two more attempts", func() bool { return dials.Load() >= before+3 })
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if logged := strings.Count(log.String(), "the previous one stays active"); logged != 2 ||
		!strings.Contains(log.String(), "from port") {
		t.Errorf("logged %d times, want 2:\n%s", logged, log.String())
	}
}
