package adminserver

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// Metrics counts events of the daemon in its own registry. All methods may be called concurrently and do not
// block. The number of labels is limited: topics are counted by the part before the first dot, and the names of
// sinks and reasons come from the configuration and the code.
type Metrics struct {
	registry *prometheus.Registry

	accepted             *prometheus.CounterVec
	refused              *prometheus.CounterVec
	quotaExceeded        *prometheus.CounterVec
	requestQuotaExceeded *prometheus.CounterVec
	auditDropped         prometheus.Counter
	inbox                *prometheus.CounterVec
	listeners            listenerMetrics
	stream               streamMetrics
	replays              replayMetrics
	compression          compressionMetrics
	enqueued             *prometheus.CounterVec
	dropped              *prometheus.CounterVec
	missing              prometheus.Counter
	gaps                 prometheus.Counter
	attempts             *prometheus.HistogramVec
	failures             *prometheus.CounterVec
	retries              *prometheus.CounterVec
	parked               *prometheus.CounterVec
	deadLettered         *prometheus.CounterVec
	batched              *prometheus.CounterVec
	deadDropped          *prometheus.CounterVec
	noticesDropped       *prometheus.CounterVec
	retriesLost          *prometheus.CounterVec
	disabled             *prometheus.GaugeVec
	paused               *prometheus.GaugeVec
	circuitOpen          *prometheus.GaugeVec
	events               *prometheus.CounterVec
	failed               *gaugeFuncs
	throttled            *prometheus.GaugeVec
	backlog              *prometheus.GaugeVec
	pendingRetries       *prometheus.GaugeVec
	deadLetters          *prometheus.GaugeVec
	oldest               *prometheus.GaugeVec
	lastSuccess          *prometheus.GaugeVec
	inFlight             *gaugeFuncs
	redisUp              prometheus.Gauge
	redisRestart         prometheus.Counter
	storageUsed          prometheus.Gauge
	storageFull          prometheus.Gauge
	conditionFailures    *prometheus.CounterVec
	configReloaded       prometheus.Gauge
	configReloadedAt     prometheus.Gauge
	sources              sourceMetrics
}

// NewMetrics returns metrics with the value zero. version is the version of the daemon.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		accepted: counters(
			"notifications_accepted_total",
			"Notifications accepted over HTTP and stored in the log, by topic family; inbox_entries_total counts "+
				"the others.",
			"family",
		),
		quotaExceeded: counters("publish_quota_exceeded_total",
			"Requests to publish that were rejected because a quota was reached, by kind (key, account, ip).", "kind"),
		requestQuotaExceeded: counters("request_quota_exceeded_total",
			"Other requests that were rejected because a quota was reached, by kind (key, account).", "kind"),
		auditDropped: counter("audit_dropped_total",
			"Entries of the audit log that were dropped because too many waited to be written."),
		refused: counters("requests_refused_total", "Public requests with an error response, by code.",
			"code"),
		inbox: counters("inbox_entries_total",
			"Entries read from the inbox, by outcome: stored, repeated, quarantined.", "outcome"),
		enqueued: counters("enqueued_total", "Notifications added to a sink's queue.", "sink"),
		missing: counter("log_missing_total",
			"Matching notifications trimmed from the log before they were enqueued."),
		gaps: counter("log_gaps_total", "Losses of log entries that were not read yet."),
		dropped: counters("queue_dropped_total",
			"Notifications dropped from a sink's full backlog, the oldest first.", "sink"),
		parked: counters("deliveries_parked_total", "Scheduled retries.", "sink"),
		failures: counters("delivery_failures_total", "Failed delivery attempts, by reason.", "sink",
			"reason"),
		retries: counters("delivery_retries_total", "Delivery attempts after the first.", "sink"),
		deadLettered: counters("dead_letters_total", "Deliveries that became dead letters, by reason.", "sink",
			"reason"),
		batched: counters("batched_notifications_total",
			"Notifications in sealed batches. Each batch is one delivery.", "sink"),
		deadDropped: counters("dead_letters_dropped_total",
			"Dead letters dropped because of the backlog limit, the oldest first.", "sink"),
		noticesDropped: counters("operational_dropped_total",
			"The relay's own notifications (hubrelay.*) that were dropped because of the backlog limit.", "sink"),
		retriesLost: counters("deliveries_lost_total", "Scheduled retries whose data was missing in Redis.",
			"sink"),
		disabled: gauges("sink_disabled", "1 while the sink is disabled on this node, otherwise 0.", "sink"),
		paused:   gauges("sink_paused", "1 while the sink is paused on this node, otherwise 0.", "sink"),
		events: counters(
			"sink_events_total",
			"Events inside a sink; for a plugin: started, not_started, exited, hung, killed, gave_up, "+
				"unknown_ack, late_ack, output_cut.",
			"sink", "event",
		),
		failed: newGaugeFuncs("sink_failed",
			"1 while this node cannot deliver to an active sink, such as a plugin that does not start, otherwise 0."),
		circuitOpen: gauges("sink_breaker_open",
			"1 while the circuit breaker of the sink is open on this node, otherwise 0.", "sink"),
		throttled: gauges("sink_held",
			"1 while this node pauses because the destination asked for it (429), otherwise 0.", "sink"),
		backlog: gauges("sink_backlog", "Notifications in the queue or in open digests of a sink.", "sink"),
		pendingRetries: gauges("sink_parked",
			"Scheduled retries of a sink, including replays and deliveries that wait for an earlier one.", "sink"),
		deadLetters: gauges("sink_dead_letters", "Dead letters of a sink.", "sink"),
		oldest: gauges("sink_oldest_undelivered_seconds",
			"Age of the oldest undelivered notification of a sink, without dead letters; 0 without a backlog.", "sink"),
		lastSuccess: gauges("sink_last_success_timestamp_seconds",
			"Time of the last successful attempt on any node; 0 for never.", "sink"),
		inFlight: newGaugeFuncs("sink_in_flight", "Running delivery attempts of this node."),
		redisUp:  gauge("redis_up", "1 while Redis responds, otherwise 0; checked every five seconds."),
		storageUsed: gauge("storage_used_ratio",
			"Used share of the memory limit of Redis (the fullest server), 0 without a limit; checked every second."),
		storageFull:  gauge("storage_full", "1 while publishing is stopped because Redis is almost full, otherwise 0."),
		redisRestart: counter("embedded_redis_restarts_total", "Restarts of the embedded redis-server."),
		conditionFailures: counters("sink_when_failures_total",
			"Notifications that a sink received because its condition failed.", "sink"),
		configReloaded: gauge("config_last_reload_successful",
			"1 while the latest configuration is applied, 0 after it was rejected."),
		configReloadedAt: gauge("config_last_reload_success_timestamp_seconds",
			"Time at which a configuration was last applied, including the start."),
		attempts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "delivery_attempt_seconds",
			Help:    "Duration of delivery attempts, by sink and outcome (delivered, retry, permanent, gone).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30},
		}, []string{"sink", "outcome"}),
	}
	build := gauges("build_info", "Always 1; the version is a label.", "version")
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, m.accepted, m.refused, m.quotaExceeded, m.requestQuotaExceeded, m.auditDropped, m.inbox, m.enqueued,
		m.dropped, m.missing,
		m.gaps, m.attempts, m.failures, m.retries, m.parked, m.batched, m.deadLettered, m.deadDropped, m.noticesDropped,
		m.retriesLost,
		m.disabled, m.paused, m.circuitOpen, m.events, m.failed, m.throttled, m.backlog, m.pendingRetries,
		m.deadLetters, m.oldest, m.lastSuccess, m.inFlight,
		m.redisUp, m.redisRestart, m.storageUsed, m.storageFull, m.conditionFailures, m.configReloaded,
		m.configReloadedAt,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Reloaded(true)
	for _, k := range []quota.Kind{quota.KindKey, quota.KindAccount, quota.KindAddress} {
		m.quotaExceeded.WithLabelValues(string(k))
	}
	for _, k := range []quota.Kind{quota.KindKey, quota.KindAccount} {
		m.requestQuotaExceeded.WithLabelValues(string(k))
	}
	m.listeners = newListenerMetrics(m.registry)
	m.stream = newStreamMetrics(m.registry)
	m.replays = newReplayMetrics(m.registry)
	m.compression = newCompressionMetrics(m.registry)
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

// Registry returns the registry for the metrics of modules.
func (m *Metrics) Registry() prometheus.Registerer { return m.registry }

// Handler serves the text formats of Prometheus and OpenMetrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// Accepted counts a notification that was stored in the log.
func (m *Metrics) Accepted(topic string) {
	family, _, _ := strings.Cut(topic, ".")
	m.accepted.WithLabelValues(family).Inc()
}

// Refused counts a public request with an error response.
func (m *Metrics) Refused(code relay.Code) { m.refused.WithLabelValues(string(code)).Inc() }

// StorageUsed sets the used share of the memory of Redis, and whether publishing is stopped.
func (m *Metrics) StorageUsed(ratio float64, full bool) {
	m.storageUsed.Set(ratio)
	m.storageFull.Set(boolToFloat(full))
}

// AuditDropped counts a dropped entry of the audit log.
func (m *Metrics) AuditDropped() { m.auditDropped.Inc() }

// PublishQuotaExceeded counts a request to publish beyond a quota.
func (m *Metrics) PublishQuotaExceeded(k quota.Kind) {
	m.quotaExceeded.WithLabelValues(string(k)).Inc()
}

// RequestQuotaExceeded counts another request beyond a quota.
func (m *Metrics) RequestQuotaExceeded(k quota.Kind) {
	m.requestQuotaExceeded.WithLabelValues(string(k)).Inc()
}

// InboxStored counts inbox entries that became notifications.
func (m *Metrics) InboxStored(n int) { m.inbox.WithLabelValues("stored").Add(float64(n)) }

// InboxRepeated counts inbox entries with a known idempotency key.
func (m *Metrics) InboxRepeated(n int) { m.inbox.WithLabelValues("repeated").Add(float64(n)) }

// InboxQuarantined counts invalid inbox entries.
func (m *Metrics) InboxQuarantined(n int) { m.inbox.WithLabelValues("quarantined").Add(float64(n)) }

// Enqueued counts notifications added to a sink's queue.
func (m *Metrics) Enqueued(sink string, n int) { m.enqueued.WithLabelValues(sink).Add(float64(n)) }

// Dropped counts notifications dropped from a sink's full queue.
func (m *Metrics) Dropped(sink string, n int64) { m.dropped.WithLabelValues(sink).Add(float64(n)) }

// TrimmedBeforeEnqueue counts matching notifications that were trimmed from the log too early, for all partitions
// together.
func (m *Metrics) TrimmedBeforeEnqueue(_, n int) { m.missing.Add(float64(n)) }

// Gap counts a loss of log entries that were not read.
func (m *Metrics) Gap() { m.gaps.Inc() }

// Attempted counts one attempt with its duration. attempt counts from 1.
func (m *Metrics) Attempted(sink string, attempt int, outcome relay.Outcome, duration time.Duration) {
	m.attempts.WithLabelValues(sink, outcome.String()).Observe(duration.Seconds())
	if attempt > 1 {
		m.retries.WithLabelValues(sink).Inc()
	}
}

// Failed counts one failed attempt by reason. There are few different reasons.
func (m *Metrics) Failed(sink, reason string) { m.failures.WithLabelValues(sink, reason).Inc() }

// RetryScheduled counts a scheduled retry.
func (m *Metrics) RetryScheduled(sink string) { m.parked.WithLabelValues(sink).Inc() }

// DeadLettered counts a dead letter by reason. There are few different reasons.
func (m *Metrics) DeadLettered(sink, reason string) {
	m.deadLettered.WithLabelValues(sink, reason).Inc()
}

// Batched counts the notifications of a sealed batch.
func (m *Metrics) Batched(sink string, n int) { m.batched.WithLabelValues(sink).Add(float64(n)) }

// DeadLettersDropped counts dead letters dropped because of the limit.
func (m *Metrics) DeadLettersDropped(sink string, n int64) {
	m.deadDropped.WithLabelValues(sink).Add(float64(n))
}

// NoticeDropped counts a notification of the relay's own that a full sink rejected.
func (m *Metrics) NoticeDropped(sink string) { m.noticesDropped.WithLabelValues(sink).Inc() }

// RetryLost counts a scheduled retry whose data was missing in Redis.
func (m *Metrics) RetryLost(sink string) { m.retriesLost.WithLabelValues(sink).Inc() }

// Disabled sets whether the sink is disabled on this node.
func (m *Metrics) Disabled(sink string, disabled bool) {
	m.disabled.WithLabelValues(sink).Set(boolToFloat(disabled))
}

// Paused sets whether the sink is paused on this node.
func (m *Metrics) Paused(sink string, paused bool) {
	m.paused.WithLabelValues(sink).Set(boolToFloat(paused))
}

// SinkEvent counts an event inside a sink. There are few different events.
func (m *Metrics) SinkEvent(sink, event string) { m.events.WithLabelValues(sink, event).Inc() }

// CircuitChanged sets whether the circuit breaker of the sink is open on this node.
func (m *Metrics) CircuitChanged(sink string, open bool) {
	m.circuitOpen.WithLabelValues(sink).Set(boolToFloat(open))
}

// Throttled sets whether this node pauses because the destination asked for it.
func (m *Metrics) Throttled(sink string, throttled bool) {
	m.throttled.WithLabelValues(sink).Set(boolToFloat(throttled))
}

// Backlog sets the numbers of queued notifications (including open digests), scheduled retries and dead letters.
func (m *Metrics) Backlog(sink string, queued, parked, dead int64) {
	m.backlog.WithLabelValues(sink).Set(float64(queued))
	m.pendingRetries.WithLabelValues(sink).Set(float64(parked))
	m.deadLetters.WithLabelValues(sink).Set(float64(dead))
}

// Oldest sets the age of the oldest undelivered notification of a sink.
func (m *Metrics) Oldest(sink string, age time.Duration) {
	m.oldest.WithLabelValues(sink).Set(age.Seconds())
}

// LastSuccess sets the time of the last successful attempt. The zero time means never.
func (m *Metrics) LastSuccess(sink string, at time.Time) {
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1000
	}
	m.lastSuccess.WithLabelValues(sink).Set(seconds)
}

// RedisUp sets whether Redis responded to the last request.
func (m *Metrics) RedisUp(up bool) { m.redisUp.Set(boolToFloat(up)) }

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ConditionFailed counts n failures of the condition of a sink.
func (m *Metrics) ConditionFailed(sink string, n int) {
	m.conditionFailures.WithLabelValues(sink).Add(float64(n))
}

// Reloaded sets whether the latest configuration is applied.
func (m *Metrics) Reloaded(ok bool) {
	m.configReloaded.Set(boolToFloat(ok))
	if ok {
		m.configReloadedAt.SetToCurrentTime()
	}
}

// RedisRestarted counts a restart of the embedded redis-server.
func (m *Metrics) RedisRestarted() { m.redisRestart.Inc() }
