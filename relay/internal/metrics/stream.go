package metrics

import (
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// streamMetrics are metrics of the clients of the stream.
type streamMetrics struct {
	clients    prometheus.Gauge
	limit      prometheus.Gauge
	closes     *prometheus.CounterVec
	rejected   *prometheus.CounterVec
	frames     prometheus.Counter
	frameBytes prometheus.Counter
	waiting    *queueGauges
	delay      prometheus.Histogram
	lag        *prometheus.GaugeVec
}

func newStreamMetrics(registry *prometheus.Registry) streamMetrics {
	s := streamMetrics{
		clients: gauge("stream_clients", "Clients that are connected to the stream."),
		limit: gauge(
			"stream_clients_limit",
			"Maximum number of clients of this node, from websocket.max_connections or the limit of open files; "+
				"+Inf without a limit.",
		),
		closes: counters("stream_clients_closed_total",
			"Clients of the stream whose connection ended, by reason (slow: the client read too slowly).",
			"reason"),
		rejected: counters("stream_clients_rejected_total",
			"Rejected clients, by the limit that was reached: node, hub, account or key.", "limit"),
		frames:     counter("stream_frames_total", "Frames sent to clients of the stream."),
		frameBytes: counter("stream_bytes_total", "Bytes of the frames that were sent to clients of the stream."),
		waiting: &queueGauges{
			clients: prometheus.NewDesc(namespace+"_stream_queued_clients", "Clients with a nonempty write queue.", nil, nil),
			bytes: prometheus.NewDesc(namespace+"_stream_queued_bytes",
				"Bytes in the write queues of all clients. Clients share the memory of equal frames.", nil, nil),
		},
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "stream_delay_seconds",
			Help: "Time from storing an event (clock of Redis) until it is in the sockets or write queues of " +
				"the clients. Only the oldest event of each read is measured. websocket.gather adds to it.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 60},
		}),
		lag: gauges(
			"stream_lag_seconds",
			"Age of the oldest event in the log that this node has not sent to its clients, or 0 if there "+
				"is none. Updated every five seconds while Redis is reachable.",
			"partition",
		),
	}
	registry.MustRegister(s.clients, s.limit, s.closes, s.rejected, s.frames, s.frameBytes, s.waiting, s.delay, s.lag)
	s.limit.Set(math.Inf(1))
	for v, labels := range map[*prometheus.CounterVec][]string{ // shown at zero
		s.rejected: {"node", "hub", "key", "account"},
		s.closes:   {"client", "protocol", "slow", "silent", "expired", "removed", "token", "drain"},
	} {
		for _, label := range labels {
			v.WithLabelValues(label)
		}
	}
	return s
}

// Connected counts a new connection.
func (m *Metrics) Connected() { m.stream.clients.Inc() }

// Disconnected counts a closed connection and its reason.
func (m *Metrics) Disconnected(reason string) {
	m.stream.clients.Dec()
	m.stream.closes.WithLabelValues(reason).Inc()
}

// ClientsLimit sets the maximum number of clients of this node. 0 means no limit.
func (m *Metrics) ClientsLimit(n int) {
	if n > 0 {
		m.stream.limit.Set(float64(n))
	}
}

// Rejected counts a client that was rejected, and the limit it exceeded.
func (m *Metrics) Rejected(limit string) { m.stream.rejected.WithLabelValues(limit).Inc() }

// Queued counts frames for clients.
func (m *Metrics) Queued(frames, bytes int) {
	m.stream.frames.Add(float64(frames))
	m.stream.frameBytes.Add(float64(bytes))
}

// SetQueueFunc sets the function that returns the number of clients with queued data and the number of queued
// bytes. It is called at each scrape and must not block for long.
func (m *Metrics) SetQueueFunc(ask func() (clients, bytes int)) { m.stream.waiting.ask.Store(&ask) }

// Delayed records the age of the oldest notification of a read after all notifications were passed to the clients.
func (m *Metrics) Delayed(d time.Duration) { m.stream.delay.Observe(max(d, 0).Seconds()) }

// Lag sets the age of the oldest notification of a partition that this node has not read, or 0 if it has read all.
func (m *Metrics) Lag(partition int, d time.Duration) {
	m.stream.lag.WithLabelValues(strconv.Itoa(partition)).Set(max(d, 0).Seconds())
}

// queueGauges are gauges of queued data, evaluated at each scrape.
type queueGauges struct {
	clients, bytes *prometheus.Desc
	ask            atomic.Pointer[func() (clients, bytes int)]
}

// Describe implements [prometheus.Collector].
func (q *queueGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- q.clients
	ch <- q.bytes
}

// Collect implements [prometheus.Collector].
func (q *queueGauges) Collect(ch chan<- prometheus.Metric) {
	var clients, bytes int
	if ask := q.ask.Load(); ask != nil {
		clients, bytes = (*ask)()
	}
	ch <- prometheus.MustNewConstMetric(q.clients, prometheus.GaugeValue, float64(clients))
	ch <- prometheus.MustNewConstMetric(q.bytes, prometheus.GaugeValue, float64(bytes))
}
