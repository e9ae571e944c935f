package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

// listenerMetrics are metrics of the connections of all listeners.
type listenerMetrics struct {
	open     *prometheus.GaugeVec
	rejected *prometheus.CounterVec
	evicted  *prometheus.CounterVec
	failed   *prometheus.CounterVec
}

func newListenerMetrics(registry *prometheus.Registry) listenerMetrics {
	l := listenerMetrics{
		open: gauges("listener_connections", "Open TCP connections, including the connections of stream clients, by listener (server, health, admin).",
			"listener"),
		rejected: counters("listener_connections_rejected_total",
			"Connections that were closed at once because a limit was reached, by listener and limit (total, ip, blocked).",
			"listener", "limit"),
		evicted: counters("listener_connections_evicted_total",
			"Open connections that were closed because of a limit, such as idle ones to make room, by listener.", "listener"),
		failed: counters("listener_accept_failures_total",
			"Connections that could not be accepted, such as without free file descriptors, by listener.", "listener"),
	}
	registry.MustRegister(l.open, l.rejected, l.evicted, l.failed)
	return l
}

// Listener returns the observer of the connections of a listener.
func (m *Metrics) Listener(name string) httpserver.ConnObserver {
	l := m.listeners
	return &listenerObserver{
		open: l.open.WithLabelValues(name), evicted: l.evicted.WithLabelValues(name),
		failed: l.failed.WithLabelValues(name),
		rejected: map[httpserver.ConnLimit]prometheus.Counter{
			httpserver.ConnLimitTotal:   l.rejected.WithLabelValues(name, string(httpserver.ConnLimitTotal)),
			httpserver.ConnLimitIP:      l.rejected.WithLabelValues(name, string(httpserver.ConnLimitIP)),
			httpserver.ConnLimitBlocked: l.rejected.WithLabelValues(name, string(httpserver.ConnLimitBlocked)),
		},
	}
}

type listenerObserver struct {
	open            prometheus.Gauge
	evicted, failed prometheus.Counter
	rejected        map[httpserver.ConnLimit]prometheus.Counter
}

func (o *listenerObserver) ConnectionOpened()                         { o.open.Inc() }
func (o *listenerObserver) ConnectionClosed()                         { o.open.Dec() }
func (o *listenerObserver) ConnectionEvicted()                        { o.evicted.Inc() }
func (o *listenerObserver) AcceptFailed()                             { o.failed.Inc() }
func (o *listenerObserver) ConnectionRejected(l httpserver.ConnLimit) { o.rejected[l].Inc() }
