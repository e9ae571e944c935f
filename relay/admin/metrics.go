package admin

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hubrelay/hubrelay/relay"
)

// Metrics counts what happens in the daemon, in a registry of its own. All methods may be called concurrently and none
// blocks. Labels are bounded: topics count by their family (the part before the first dot), and the names of sinks and
// the reasons come from the configuration and the code.
type Metrics struct {
	registry *prometheus.Registry

	accepted     *prometheus.CounterVec
	refused      *prometheus.CounterVec
	quarantined  prometheus.Counter
	clients      prometheus.Gauge
	endings      *prometheus.CounterVec
	frames       prometheus.Counter
	frameBytes   prometheus.Counter
	dispatched   prometheus.Counter
	gaps         prometheus.Counter
	dropped      *prometheus.CounterVec
	attempts     *prometheus.HistogramVec
	parked       *prometheus.CounterVec
	dead         *prometheus.CounterVec
	backlog      *prometheus.GaugeVec
	redisUp      prometheus.Gauge
	redisRestart prometheus.Counter
}

// NewMetrics returns metrics at zero; version is the daemon's.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry:     prometheus.NewRegistry(),
		accepted:     counters("notifications_accepted_total", "Notifications stored in the log, by family of topic.", "family"),
		refused:      counters("requests_refused_total", "Public requests answered with an error, by its code.", "code"),
		quarantined:  counter("quarantined_total", "Inbox entries that went to the quarantine stream."),
		clients:      gauge("stream_clients", "Clients that are connected to the stream now."),
		endings:      counters("stream_endings_total", "Streams that ended, by reason (slow: the client read too slowly).", "reason"),
		frames:       counter("stream_frames_total", "Notifications given to clients of the stream."),
		frameBytes:   counter("stream_bytes_total", "Bytes of these frames."),
		dispatched:   counter("dispatched_total", "Notifications put into the queues of sinks, one for each sink."),
		gaps:         counter("log_gaps_total", "Times the log had lost entries that were not read yet."),
		dropped:      counters("queue_dropped_total", "Notifications dropped from a sink's full backlog, the oldest first.", "sink"),
		parked:       counters("deliveries_parked_total", "Deliveries parked for a later attempt.", "sink"),
		dead:         counters("dead_letters_total", "Deliveries that became dead letters.", "sink"),
		redisUp:      gauge("redis_up", "1 while Redis answers, else 0."),
		redisRestart: counter("embedded_redis_restarts_total", "Times the embedded redis-server ended and was started again."),
		attempts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "delivery_attempt_seconds",
			Help:    "Time of one attempt to deliver, by sink and outcome (delivered, retry, permanent, gone).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30},
		}, []string{"sink", "outcome"}),
		backlog: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "sink_backlog", Help: "Notifications that wait in a sink's queue.",
		}, []string{"sink"}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the version is a label.",
	}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, m.accepted, m.refused, m.quarantined, m.clients, m.endings, m.frames, m.frameBytes,
		m.dispatched, m.gaps, m.dropped, m.attempts, m.parked, m.dead, m.backlog, m.redisUp, m.redisRestart,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

const namespace = "hubrelay"

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func counters(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

// Registry is where others may add collectors, whose names must begin with "hubrelay_".
func (m *Metrics) Registry() prometheus.Registerer { return m.registry }

// Handler serves the text format of Prometheus and of OpenMetrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// Accepted counts one notification that was stored in the log.
func (m *Metrics) Accepted(topic string) {
	family, _, _ := strings.Cut(topic, ".")
	m.accepted.WithLabelValues(family).Inc()
}

// Refused counts a public request that was answered with an error.
func (m *Metrics) Refused(code relay.Code) { m.refused.WithLabelValues(string(code)).Inc() }

// Quarantined counts inbox entries that were not valid.
func (m *Metrics) Quarantined(n int) { m.quarantined.Add(float64(n)) }

// Connected counts a client of the stream in.
func (m *Metrics) Connected() { m.clients.Inc() }

// Disconnected counts a client of the stream out, and why.
func (m *Metrics) Disconnected(reason string) {
	m.clients.Dec()
	m.endings.WithLabelValues(reason).Inc()
}

// Queued counts frames given to clients of the stream.
func (m *Metrics) Queued(frames, bytes int) {
	m.frames.Add(float64(frames))
	m.frameBytes.Add(float64(bytes))
}

// Dispatched counts notifications put into sinks' queues, one for each sink.
func (m *Metrics) Dispatched(n int) { m.dispatched.Add(float64(n)) }

// Gap counts one loss of log entries that nobody had read.
func (m *Metrics) Gap() { m.gaps.Inc() }

// Dropped counts notifications that left a sink's full queue unread.
func (m *Metrics) Dropped(sink string, n int64) { m.dropped.WithLabelValues(sink).Add(float64(n)) }

// Attempted counts one attempt to deliver and its time.
func (m *Metrics) Attempted(sink string, outcome relay.Outcome, took time.Duration) {
	m.attempts.WithLabelValues(sink, outcome.String()).Observe(took.Seconds())
}

// Parked counts one delivery put aside for a later attempt.
func (m *Metrics) Parked(sink string) { m.parked.WithLabelValues(sink).Inc() }

// Dead counts one dead letter.
func (m *Metrics) Dead(sink string) { m.dead.WithLabelValues(sink).Inc() }

// Backlog sets how many notifications wait in a sink's queue.
func (m *Metrics) Backlog(sink string, n int64) { m.backlog.WithLabelValues(sink).Set(float64(n)) }

// RedisUp says whether Redis answered last time it was asked.
func (m *Metrics) RedisUp(up bool) {
	value := 0.0
	if up {
		value = 1
	}
	m.redisUp.Set(value)
}

// RedisRestarted counts a restart of the embedded redis-server.
func (m *Metrics) RedisRestarted() { m.redisRestart.Inc() }
