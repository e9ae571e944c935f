package adminserver

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

	accepted          *prometheus.CounterVec
	refused           *prometheus.CounterVec
	inbox             *prometheus.CounterVec
	stream            streamMetrics
	replays           replayMetrics
	compression       compressionMetrics
	enqueued          *prometheus.CounterVec
	dropped           *prometheus.CounterVec
	missing           prometheus.Counter
	gaps              prometheus.Counter
	attempts          *prometheus.HistogramVec
	failures          *prometheus.CounterVec
	retries           *prometheus.CounterVec
	parked            *prometheus.CounterVec
	deadLettered      *prometheus.CounterVec
	batched           *prometheus.CounterVec
	deadDropped       *prometheus.CounterVec
	noticesDropped    *prometheus.CounterVec
	retriesLost       *prometheus.CounterVec
	disabled          *prometheus.GaugeVec
	paused            *prometheus.GaugeVec
	circuitOpen       *prometheus.GaugeVec
	events            *prometheus.CounterVec
	failed            *gaugeFuncs
	throttled         *prometheus.GaugeVec
	backlog           *prometheus.GaugeVec
	pendingRetries    *prometheus.GaugeVec
	deadLetters       *prometheus.GaugeVec
	oldest            *prometheus.GaugeVec
	lastSuccess       *prometheus.GaugeVec
	inFlight          *gaugeFuncs
	redisUp           prometheus.Gauge
	redisRestart      prometheus.Counter
	conditionFailures *prometheus.CounterVec
	configReloaded    prometheus.Gauge
	configReloadedAt  prometheus.Gauge
	jobs              jobMetrics
	sources           sourceMetrics
}

// NewMetrics returns metrics at zero; version is the daemon's.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry:          prometheus.NewRegistry(),
		accepted:          counters("notifications_accepted_total", "Notifications accepted over HTTP and stored in the log, by family of topic; inbox_entries_total has the others.", "family"),
		refused:           counters("requests_refused_total", "Public requests answered with an error, by its code.", "code"),
		inbox:             counters("inbox_entries_total", "Entries taken from the inbox, by outcome: stored, repeated, quarantined.", "outcome"),
		enqueued:          counters("enqueued_total", "Notifications put into a sink's queue.", "sink"),
		missing:           counter("log_missing_total", "Matched notifications that had left the log before they were enqueued."),
		gaps:              counter("log_gaps_total", "Times the log had lost entries that were not read yet."),
		dropped:           counters("queue_dropped_total", "Notifications dropped from a sink's full backlog, the oldest first.", "sink"),
		parked:            counters("deliveries_parked_total", "Deliveries parked for a later attempt.", "sink"),
		failures:          counters("delivery_failures_total", "Failed attempts to deliver, by reason.", "sink", "reason"),
		retries:           counters("delivery_retries_total", "Attempts beyond a delivery's first.", "sink"),
		deadLettered:      counters("dead_letters_total", "Deliveries that became dead letters, by reason.", "sink", "reason"),
		batched:           counters("batched_notifications_total", "Notifications that were sealed into batches, each of which is one delivery.", "sink"),
		deadDropped:       counters("dead_letters_dropped_total", "Dead letters dropped since there were too many, the oldest first.", "sink"),
		noticesDropped:    counters("operational_dropped_total", "Notifications of the relay's own (hubrelay.*) that a sink's full delay queue did not take.", "sink"),
		retriesLost:       counters("deliveries_lost_total", "Parked deliveries whose body was gone from Redis.", "sink"),
		disabled:          gauges("sink_disabled", "1 while the sink is disabled on this node, else 0.", "sink"),
		paused:            gauges("sink_paused", "1 while the sink is paused on this node, else 0.", "sink"),
		events:            counters("sink_events_total", "What happened inside a sink, by event; for a plugin: started, not_started, exited, hung, killed, gave_up, unknown_ack, late_ack, output_cut.", "sink", "event"),
		failed:            newGaugeFuncs("sink_failed", "1 while this node can deliver nothing to a sink that is active, such as a plugin that does not start, else 0."),
		circuitOpen:       gauges("sink_breaker_open", "1 while this node holds a sink's deliveries back, since its destination is down, else 0.", "sink"),
		throttled:         gauges("sink_held", "1 while this node leaves a sink's destination alone, which said that it gets too much (429), else 0.", "sink"),
		backlog:           gauges("sink_backlog", "Notifications that wait for their first attempt, in a sink's queue or in a digest that gathers.", "sink"),
		pendingRetries:    gauges("sink_parked", "Deliveries that wait for another attempt, or for their turn behind one, or were replayed.", "sink"),
		deadLetters:       gauges("sink_dead_letters", "Dead letters that are kept for a sink.", "sink"),
		oldest:            gauges("sink_oldest_undelivered_seconds", "How long the oldest delivery of a sink has waited that is neither delivered nor dead; 0 where none waits.", "sink"),
		lastSuccess:       gauges("sink_last_success_timestamp_seconds", "When a sink's receiver took something last, on any node; 0 for never.", "sink"),
		inFlight:          newGaugeFuncs("sink_in_flight", "Attempts to deliver that this node is making."),
		redisUp:           gauge("redis_up", "1 while Redis answers, else 0; asked every five seconds."),
		redisRestart:      counter("embedded_redis_restarts_total", "Times the embedded redis-server ended and was started again."),
		conditionFailures: counters("sink_when_failures_total", "Notifications that a sink got because the expression in its when failed.", "sink"),
		configReloaded:    gauge("config_last_reload_successful", "1 while the configuration that runs is the latest one, 0 where that could not be taken over."),
		configReloadedAt:  gauge("config_last_reload_success_timestamp_seconds", "When a configuration was taken over last; the start counts."),
		attempts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "delivery_attempt_seconds",
			Help:    "Time of one attempt to deliver, by sink and outcome (delivered, retry, permanent, gone).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30},
		}, []string{"sink", "outcome"}),
	}
	build := gauges("build_info", "Always 1; the version is a label.", "version")
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, m.accepted, m.refused, m.inbox, m.enqueued, m.dropped, m.missing, m.gaps,
		m.attempts, m.failures, m.retries, m.parked, m.batched, m.deadLettered, m.deadDropped, m.noticesDropped, m.retriesLost,
		m.disabled, m.paused, m.circuitOpen, m.events, m.failed, m.throttled, m.backlog, m.pendingRetries, m.deadLetters, m.oldest, m.lastSuccess, m.inFlight,
		m.redisUp, m.redisRestart, m.conditionFailures, m.configReloaded, m.configReloadedAt,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Reloaded(true)
	m.stream = newStreamMetrics(m.registry)
	m.replays = newReplayMetrics(m.registry)
	m.compression = newCompressionMetrics(m.registry)
	m.jobs = newJobMetrics(m.registry)
	m.sources = newSourceMetrics(m.registry)
	return m
}

const namespace = "hubrelay"

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

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

// InboxStored counts entries of the inbox that became notifications.
func (m *Metrics) InboxStored(n int) { m.inbox.WithLabelValues("stored").Add(float64(n)) }

// InboxRepeated counts entries of the inbox whose key was known.
func (m *Metrics) InboxRepeated(n int) { m.inbox.WithLabelValues("repeated").Add(float64(n)) }

// InboxQuarantined counts entries of the inbox that were not valid.
func (m *Metrics) InboxQuarantined(n int) { m.inbox.WithLabelValues("quarantined").Add(float64(n)) }

// Enqueued counts notifications put into a sink's queue.
func (m *Metrics) Enqueued(sink string, n int) { m.enqueued.WithLabelValues(sink).Add(float64(n)) }

// Dropped counts notifications that left a sink's full queue unread.
func (m *Metrics) Dropped(sink string, n int64) { m.dropped.WithLabelValues(sink).Add(float64(n)) }

// TrimmedBeforeEnqueue counts matched notifications that had left the log too early; partitions count together.
func (m *Metrics) TrimmedBeforeEnqueue(_, n int) { m.missing.Add(float64(n)) }

// Gap counts one loss of log entries that nobody had read.
func (m *Metrics) Gap() { m.gaps.Inc() }

// Attempted counts one attempt to deliver and its time; attempt counts from 1.
func (m *Metrics) Attempted(sink string, attempt int, outcome relay.Outcome, took time.Duration) {
	m.attempts.WithLabelValues(sink, outcome.String()).Observe(took.Seconds())
	if attempt > 1 {
		m.retries.WithLabelValues(sink).Inc()
	}
}

// Failed counts one failed attempt and its reason, one of a few.
func (m *Metrics) Failed(sink, reason string) { m.failures.WithLabelValues(sink, reason).Inc() }

// RetryScheduled counts one delivery put aside for a later attempt.
func (m *Metrics) RetryScheduled(sink string) { m.parked.WithLabelValues(sink).Inc() }

// DeadLettered counts one dead letter and its reason, one of a few.
func (m *Metrics) DeadLettered(sink, reason string) {
	m.deadLettered.WithLabelValues(sink, reason).Inc()
}

// Batched counts the notifications that were sealed as one delivery.
func (m *Metrics) Batched(sink string, n int) { m.batched.WithLabelValues(sink).Add(float64(n)) }

// DeadLettersDropped counts dead letters that had to go.
func (m *Metrics) DeadLettersDropped(sink string, n int64) {
	m.deadDropped.WithLabelValues(sink).Add(float64(n))
}

// NoticeDropped counts one notification of the relay's own that a sink could not take.
func (m *Metrics) NoticeDropped(sink string) { m.noticesDropped.WithLabelValues(sink).Inc() }

// RetryLost counts one parked delivery whose body was gone.
func (m *Metrics) RetryLost(sink string) { m.retriesLost.WithLabelValues(sink).Inc() }

// Disabled says whether the sink is disabled on this node.
func (m *Metrics) Disabled(sink string, disabled bool) {
	m.disabled.WithLabelValues(sink).Set(boolToFloat(disabled))
}

// Paused says whether the sink is paused on this node.
func (m *Metrics) Paused(sink string, paused bool) {
	m.paused.WithLabelValues(sink).Set(boolToFloat(paused))
}

// SinkEvent counts something that happened inside a sink, one of a few.
func (m *Metrics) SinkEvent(sink, event string) { m.events.WithLabelValues(sink, event).Inc() }

// CircuitChanged says whether this node holds the sink's deliveries back, since its destination is down.
func (m *Metrics) CircuitChanged(sink string, down bool) {
	m.circuitOpen.WithLabelValues(sink).Set(boolToFloat(down))
}

// Throttled says whether this node leaves the sink's destination alone, since that said that it gets too much.
func (m *Metrics) Throttled(sink string, held bool) {
	m.throttled.WithLabelValues(sink).Set(boolToFloat(held))
}

// Backlog sets how many notifications a sink has not got yet: in its queue or a digest that gathers, parked after a failure, and dead.
func (m *Metrics) Backlog(sink string, queued, parked, dead int64) {
	m.backlog.WithLabelValues(sink).Set(float64(queued))
	m.pendingRetries.WithLabelValues(sink).Set(float64(parked))
	m.deadLetters.WithLabelValues(sink).Set(float64(dead))
}

// Oldest sets how long the oldest delivery of a sink has waited.
func (m *Metrics) Oldest(sink string, age time.Duration) {
	m.oldest.WithLabelValues(sink).Set(age.Seconds())
}

// LastSuccess sets when a sink's receiver took something last; the zero time is never.
func (m *Metrics) LastSuccess(sink string, at time.Time) {
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1000
	}
	m.lastSuccess.WithLabelValues(sink).Set(seconds)
}

// RedisUp says whether Redis answered last time it was asked.
func (m *Metrics) RedisUp(up bool) { m.redisUp.Set(boolToFloat(up)) }

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ConditionFailed counts n failures of the expression in a sink's when.
func (m *Metrics) ConditionFailed(sink string, n int) {
	m.conditionFailures.WithLabelValues(sink).Add(float64(n))
}

// Reloaded tells whether the latest configuration was taken over.
func (m *Metrics) Reloaded(ok bool) {
	m.configReloaded.Set(boolToFloat(ok))
	if ok {
		m.configReloadedAt.SetToCurrentTime()
	}
}

// RedisRestarted counts a restart of the embedded redis-server.
func (m *Metrics) RedisRestarted() { m.redisRestart.Inc() }
