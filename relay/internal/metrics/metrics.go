// Package metrics counts the events of all packages for Prometheus. Other packages declare small interfaces for their
// counters, and [Metrics] implements most of them.
package metrics

import (
	"net/http"
	"strings"

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

	accepted         *prometheus.CounterVec
	rejected         *prometheus.CounterVec
	quotaExceeded    *prometheus.CounterVec
	auditDropped     prometheus.Counter
	historyStored    prometheus.Counter
	historyDropped   prometheus.Counter
	inbox            *prometheus.CounterVec
	missed           prometheus.Counter
	gaps             prometheus.Counter
	retriesLost      prometheus.Counter
	redisUp          prometheus.Gauge
	redisRestarts    prometheus.Counter
	storageUsed      prometheus.Gauge
	storageFull      prometheus.Gauge
	configReloaded   prometheus.Gauge
	configReloadedAt prometheus.Gauge
	listeners        listenerMetrics
	stream           streamMetrics
	replays          replayMetrics
	compression      compressionMetrics
	sinks            sinkMetrics
	sources          sourceMetrics
}

// New returns metrics with the value zero. version is the version of the daemon.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		accepted: counters("events_accepted_total",
			"Events that were accepted over HTTP and stored in the log, by topic family. hubrelay_inbox_entries_total counts "+
				"the events of the inbox.", "family"),
		rejected: counters("requests_rejected_total", "Public requests with an error response, by code.", "code"),
		quotaExceeded: counters("quota_rejections_total",
			"Requests that were rejected because a quota was reached, by operation (publish, or request for all others) "+
				"and by the quota that was reached (key, account, ip).", "operation", "quota"),
		auditDropped: counter("audit_dropped_total",
			"Entries of the audit log that were dropped because too many waited to be written."),
		historyStored: counter("history_records_total", "Records of the history of events that were stored."),
		historyDropped: counter("history_records_dropped_total",
			"Records of the history of events that were dropped, because Redis was too slow, full or unreachable."),
		inbox: counters("inbox_entries_total",
			"Entries read from the inbox, by result: stored, repeated, quarantined.", "result"),
		missed: counter("log_events_missed_total",
			"Events that matched a sink, but were trimmed from the log before they were added to its queue."),
		gaps: counter("log_gaps_total", "Losses of log entries that were not read yet."),
		retriesLost: counter("retries_lost_total",
			"Scheduled retries of all sinks whose data was missing in Redis. A log message names the sink and the delivery."),
		redisUp: gauge("redis_up", "1 while Redis responds, otherwise 0. It is checked every five seconds."),
		storageUsed: gauge("storage_used_ratio",
			"Used share of the memory limit of Redis (the fullest server), from 0 to 1. It is 0 without a limit."),
		storageFull:   gauge("storage_full", "1 while publishing is stopped because Redis is almost full, otherwise 0."),
		redisRestarts: counter("embedded_redis_restarts_total", "Restarts of the embedded redis-server."),
		configReloaded: gauge("config_last_reload_successful",
			"1 while the latest configuration is applied, 0 after it was rejected."),
		configReloadedAt: gauge("config_last_reload_success_timestamp_seconds",
			"Time at which a configuration was last applied, including the start."),
	}
	build := gauges("build_info", "Always 1; the version is a label.", "version")
	build.WithLabelValues(version).Set(1)
	m.registry.MustRegister(build, m.accepted, m.rejected, m.quotaExceeded, m.auditDropped, m.historyStored,
		m.historyDropped, m.inbox, m.missed, m.gaps,
		m.retriesLost, m.redisUp, m.storageUsed, m.storageFull, m.redisRestarts, m.configReloaded, m.configReloadedAt,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Reloaded(true)
	m.listeners = newListenerMetrics(m.registry)
	m.stream = newStreamMetrics(m.registry)
	m.replays = newReplayMetrics(m.registry)
	m.compression = newCompressionMetrics(m.registry)
	m.sinks = newSinkMetrics(m.registry)
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

// RequestRejected counts a public request with an error response.
func (m *Metrics) RequestRejected(code relay.Code) { m.rejected.WithLabelValues(string(code)).Inc() }

// StorageUsed sets the used share of the memory of Redis, and whether publishing is stopped.
func (m *Metrics) StorageUsed(ratio float64, full bool) {
	m.storageUsed.Set(ratio)
	m.storageFull.Set(boolToFloat(full))
}

// AuditDropped counts a dropped entry of the audit log.
func (m *Metrics) AuditDropped() { m.auditDropped.Inc() }

// HistoryStored counts records of the history.
func (m *Metrics) HistoryStored(n int) { m.historyStored.Add(float64(n)) }

// HistoryDropped counts records of the history that were dropped.
func (m *Metrics) HistoryDropped(n int) { m.historyDropped.Add(float64(n)) }

// QuotaExceeded returns a function that counts requests beyond a quota. kinds are the kinds of quotas that limit the
// operation.
func (m *Metrics) QuotaExceeded(operation string, kinds ...quota.Kind) func(quota.Kind) {
	for _, k := range kinds { // shown at zero
		m.quotaExceeded.WithLabelValues(operation, string(k))
	}
	return func(k quota.Kind) { m.quotaExceeded.WithLabelValues(operation, string(k)).Inc() }
}

// InboxStored counts inbox entries that became notifications.
func (m *Metrics) InboxStored(n int) { m.inbox.WithLabelValues("stored").Add(float64(n)) }

// InboxRepeated counts inbox entries with a known idempotency key.
func (m *Metrics) InboxRepeated(n int) { m.inbox.WithLabelValues("repeated").Add(float64(n)) }

// InboxQuarantined counts invalid inbox entries.
func (m *Metrics) InboxQuarantined(n int) { m.inbox.WithLabelValues("quarantined").Add(float64(n)) }

// TrimmedBeforeEnqueue counts matching notifications that were trimmed from the log too early, for all partitions
// together.
func (m *Metrics) TrimmedBeforeEnqueue(_, n int) { m.missed.Add(float64(n)) }

// Gap counts a loss of log entries that were not read.
func (m *Metrics) Gap() { m.gaps.Inc() }

// RetryLost counts a scheduled retry whose data was missing in Redis.
func (m *Metrics) RetryLost(string) { m.retriesLost.Inc() }

// RedisUp sets whether Redis responded to the last request.
func (m *Metrics) RedisUp(up bool) { m.redisUp.Set(boolToFloat(up)) }

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Reloaded sets whether the latest configuration is applied.
func (m *Metrics) Reloaded(ok bool) {
	m.configReloaded.Set(boolToFloat(ok))
	if ok {
		m.configReloadedAt.SetToCurrentTime()
	}
}

// RedisRestarted counts a restart of the embedded redis-server.
func (m *Metrics) RedisRestarted() { m.redisRestarts.Inc() }
