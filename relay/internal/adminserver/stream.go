package adminserver

import (
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// streamMetrics are about the clients of the stream as a whole.
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
		clients:    gauge("stream_clients", "Clients that are connected to the stream now."),
		limit:      gauge("stream_clients_limit", "How many clients of the stream this node takes: by websocket.max_connections, or by the files that it may open where those are fewer; +Inf where nothing limits them."),
		closes:     counters("stream_endings_total", "Streams that ended, by reason (slow: the client read too slowly).", "reason"),
		rejected:   counters("stream_turned_away_total", "Clients of the stream that were refused since a limit was reached: of the node, their hub or their key.", "limit"),
		frames:     counter("stream_frames_total", "Notifications given to clients of the stream."),
		frameBytes: counter("stream_bytes_total", "Bytes of these frames."),
		waiting: &queueGauges{
			clients: prometheus.NewDesc(namespace+"_stream_queued_clients", "Clients of the stream for which something waits, since they have not read it yet.", nil, nil),
			bytes:   prometheus.NewDesc(namespace+"_stream_queued_bytes", "Bytes that wait for them; what several clients wait for is there once and counts for each.", nil, nil),
		},
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "stream_delay_seconds",
			Help:    "Time from storing a notification, by Redis' clock, until this node has given it to its clients' sockets or queues, of the oldest in each read of the log; websocket.gather comes on top.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60},
		}),
		lag: gauges("stream_lag_seconds", "For how long the oldest notification of the log has waited, by Redis' clock, that this node has not given to its clients; 0 where there is none. Asked every five seconds, and as it was while Redis is away.", "partition"),
	}
	registry.MustRegister(s.clients, s.limit, s.closes, s.rejected, s.frames, s.frameBytes, s.waiting, s.delay, s.lag)
	s.limit.Set(math.Inf(1))
	for v, labels := range map[*prometheus.CounterVec][]string{ // shown at zero, as Expect does
		s.rejected: {"node", "hub", "key"}, s.closes: {"client", "protocol", "slow", "silent", "expired", "drain"},
	} {
		for _, label := range labels {
			v.WithLabelValues(label)
		}
	}
	return s
}

// Connected counts a client of the stream in.
func (m *Metrics) Connected() { m.stream.clients.Inc() }

// Disconnected counts a client of the stream out, and why.
func (m *Metrics) Disconnected(reason string) {
	m.stream.clients.Dec()
	m.stream.closes.WithLabelValues(reason).Inc()
}

// ClientsLimit says how many clients of the stream this node takes; 0 is no limit.
func (m *Metrics) ClientsLimit(n int) {
	if n > 0 {
		m.stream.limit.Set(float64(n))
	}
}

// Rejected counts a client of the stream that was refused, and the limit that it found reached.
func (m *Metrics) Rejected(limit string) { m.stream.rejected.WithLabelValues(limit).Inc() }

// Queued counts frames given to clients of the stream.
func (m *Metrics) Queued(frames, bytes int) {
	m.stream.frames.Add(float64(frames))
	m.stream.frameBytes.Add(float64(bytes))
}

// SetQueueFunc lets ask, which must not block for long, say at each scrape for how many clients something waits, and how many bytes.
func (m *Metrics) SetQueueFunc(ask func() (clients, bytes int)) { m.stream.waiting.ask.Store(&ask) }

// Delayed notes how long ago the oldest of a read was stored when all of it had been given to the clients.
func (m *Metrics) Delayed(d time.Duration) { m.stream.delay.Observe(max(d, 0).Seconds()) }

// Lag says for how long the oldest notification of a partition waits that this node has not read; zero where there is none.
func (m *Metrics) Lag(partition int, d time.Duration) {
	m.stream.lag.WithLabelValues(strconv.Itoa(partition)).Set(max(d, 0).Seconds())
}

// queueGauges is what waits for clients, asked for once at each scrape.
type queueGauges struct {
	clients, bytes *prometheus.Desc
	ask            atomic.Pointer[func() (clients, bytes int)]
}

// Describe is Prometheus' business.
func (w *queueGauges) Describe(to chan<- *prometheus.Desc) {
	to <- w.clients
	to <- w.bytes
}

// Collect is Prometheus' business.
func (w *queueGauges) Collect(to chan<- prometheus.Metric) {
	var clients, bytes int
	if ask := w.ask.Load(); ask != nil {
		clients, bytes = (*ask)()
	}
	to <- prometheus.MustNewConstMetric(w.clients, prometheus.GaugeValue, float64(clients))
	to <- prometheus.MustNewConstMetric(w.bytes, prometheus.GaugeValue, float64(bytes))
}
