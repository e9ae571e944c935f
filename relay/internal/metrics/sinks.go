package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
)

// sinkMetrics are metrics of sinks. A sink has at most 40 series, plus one for each event of a plugin, for batches, and
// for a condition.
type sinkMetrics struct {
	evaluated   *evaluatedSinks
	waiting     *prometheus.GaugeVec
	retrying    *prometheus.GaugeVec
	dead        *prometheus.GaugeVec
	oldest      *prometheus.GaugeVec
	lastSuccess *prometheus.GaugeVec
	enqueued    *prometheus.CounterVec
	attempts    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	retries     *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	batched     *prometheus.CounterVec
	conditions  *prometheus.CounterVec
	plugins     *prometheus.CounterVec
}

func newSinkMetrics(registry *prometheus.Registry) sinkMetrics {
	s := sinkMetrics{
		evaluated: newEvaluatedSinks(),
		waiting: gauges("sink_waiting",
			"Events in the queue and the open digests of a sink, on all nodes.", "sink"),
		retrying: gauges("sink_retrying",
			"Deliveries of a sink whose next attempt is scheduled, including replays and deliveries that wait for an "+
				"earlier one, on all nodes.", "sink"),
		dead: gauges("sink_dead", "Dead letters of a sink, on all nodes.", "sink"),
		oldest: gauges("sink_oldest_age_seconds",
			"Age of the oldest waiting or retrying event of a sink, or 0 if it has none. An open digest counts from the "+
				"time when it should have been sent.", "sink"),
		lastSuccess: gauges("sink_last_success_timestamp_seconds",
			"Time of the last successful attempt on any node; 0 for never.", "sink"),
		enqueued: counters("sink_enqueued_total", "Events that this node added to the queue of a sink.", "sink"),
		attempts: counters("sink_attempts_total",
			"Attempts of this node, by result: delivered, or the reason of the failure.", "sink", "result"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "sink_attempt_duration_seconds", Help: "Duration of the attempts of this node.",
			Buckets: []float64{.005, .025, .1, .25, 1, 5, 15, 60},
		}, []string{"sink"}),
		retries: counters("sink_retries_total", "Attempts of this node after the first attempt of a delivery.", "sink"),
		dropped: counters("sink_dropped_total",
			"Events and dead letters that this node dropped because of a limit: the backlog, the share of their account, "+
				"or the memory of Redis. It does not count what operators drop.", "sink"),
		deadLetters: counters("sink_dead_letters_total", "Deliveries that became dead letters on this node.", "sink"),
		batched: counters("sink_batched_events_total",
			"Events in the sealed batches of this node. Each batch is one delivery.", "sink"),
		conditions: counters("sink_condition_failures_total",
			"Events that a sink received because its condition (when) could not be evaluated.", "sink"),
		plugins: counters("sink_plugin_events_total",
			"Changes of the process of a plugin: started, not_started, exited, hung, killed, gave_up, unknown_ack, "+
				"late_ack, output_cut.", "sink", "event"),
	}
	registry.MustRegister(s.evaluated)
	for _, v := range s.listVectors() {
		registry.MustRegister(v)
	}
	return s
}

// sinkVector is a metric with the label sink.
type sinkVector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

func (s *sinkMetrics) listVectors() []sinkVector {
	return []sinkVector{
		s.waiting, s.retrying, s.dead, s.oldest, s.lastSuccess, s.enqueued, s.attempts, s.duration, s.retries, s.dropped,
		s.deadLetters, s.batched, s.conditions, s.plugins,
	}
}

// resultDelivered is the label of a successful attempt.
const resultDelivered = "delivered"

// InitSink creates the time series of a sink with the value zero. A series that starts with its first event hides
// this event from rate(). Call Batched and ConditionFailed with 0 for a sink with batches or a condition.
func (m *Metrics) InitSink(sink string) {
	s := &m.sinks
	for _, result := range append([]string{resultDelivered}, attempt.FailureReasons()...) {
		s.attempts.WithLabelValues(sink, result)
	}
	s.duration.WithLabelValues(sink)
	for _, v := range []*prometheus.CounterVec{s.enqueued, s.retries, s.dropped, s.deadLetters} {
		v.WithLabelValues(sink)
	}
	m.Backlog(sink, 0, 0, 0)
	m.Oldest(sink, 0)
	m.LastSuccess(sink, time.Time{})
	m.SetInFlightFunc(sink, func() int64 { return 0 })
	m.SetStateFunc(sink, func() adminapi.SinkState { return adminapi.SinkActive })
}

// RemoveSink removes all time series of a sink that was removed from the configuration.
func (m *Metrics) RemoveSink(sink string) {
	for _, v := range m.sinks.listVectors() {
		v.DeletePartialMatch(prometheus.Labels{"sink": sink})
	}
	m.sinks.evaluated.remove(sink)
}

// Enqueued counts events that were added to a sink's queue.
func (m *Metrics) Enqueued(sink string, n int) {
	m.sinks.enqueued.WithLabelValues(sink).Add(float64(n))
}

// Dropped counts events and dead letters that were dropped because the backlog or Redis was full.
func (m *Metrics) Dropped(sink string, n int64) {
	m.sinks.dropped.WithLabelValues(sink).Add(float64(n))
}

// Attempted counts one attempt with its duration. attempt counts from 1. failure is the reason of a failure, or empty.
func (m *Metrics) Attempted(sink string, attempt int, failure string, duration time.Duration) {
	if failure == "" {
		failure = resultDelivered
	}
	m.sinks.attempts.WithLabelValues(sink, failure).Inc()
	m.sinks.duration.WithLabelValues(sink).Observe(duration.Seconds())
	if attempt > 1 {
		m.sinks.retries.WithLabelValues(sink).Inc()
	}
}

// DeadLettered counts a dead letter.
func (m *Metrics) DeadLettered(sink, _ string) { m.sinks.deadLetters.WithLabelValues(sink).Inc() }

// Batched counts the events of a sealed batch.
func (m *Metrics) Batched(sink string, n int) { m.sinks.batched.WithLabelValues(sink).Add(float64(n)) }

// PluginEvent counts an event of the process of a plugin. There are few different events.
func (m *Metrics) PluginEvent(sink, event string) { m.sinks.plugins.WithLabelValues(sink, event).Inc() }

// ConditionFailed counts n failures of the condition of a sink.
func (m *Metrics) ConditionFailed(sink string, n int) {
	m.sinks.conditions.WithLabelValues(sink).Add(float64(n))
}

// Backlog sets the numbers of waiting events (including open digests), scheduled retries and dead letters.
func (m *Metrics) Backlog(sink string, waiting, retrying, dead int64) {
	m.sinks.waiting.WithLabelValues(sink).Set(float64(waiting))
	m.sinks.retrying.WithLabelValues(sink).Set(float64(retrying))
	m.sinks.dead.WithLabelValues(sink).Set(float64(dead))
}

// Oldest sets the age of the oldest event of a sink that is waiting or retrying.
func (m *Metrics) Oldest(sink string, age time.Duration) {
	m.sinks.oldest.WithLabelValues(sink).Set(age.Seconds())
}

// LastSuccess sets the time of the last successful attempt. The zero time means never.
func (m *Metrics) LastSuccess(sink string, at time.Time) {
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1000
	}
	m.sinks.lastSuccess.WithLabelValues(sink).Set(seconds)
}

// SetInFlightFunc sets the function that returns the number of running attempts of a sink on this node. It must
// not block.
func (m *Metrics) SetInFlightFunc(sink string, get func() int64) {
	m.sinks.evaluated.set(sink, func(s *evaluatedSink) { s.inFlight = get })
}

// SetStateFunc sets the function that returns the state of a sink on this node. It must not block.
func (m *Metrics) SetStateFunc(sink string, get func() adminapi.SinkState) {
	m.sinks.evaluated.set(sink, func(s *evaluatedSink) { s.state = get })
}

// evaluatedSinks are the gauges of sinks that are evaluated at each scrape.
type evaluatedSinks struct {
	state, inFlight *prometheus.Desc

	mu    sync.Mutex
	sinks map[string]evaluatedSink
}

type evaluatedSink struct {
	state    func() adminapi.SinkState
	inFlight func() int64
}

func newEvaluatedSinks() *evaluatedSinks {
	return &evaluatedSinks{
		state: prometheus.NewDesc(namespace+"_sink_state",
			"1 for the state of the sink on this node, 0 for the others: active, paused, disabled, down (the destination "+
				"failed many times in a row), throttled (the destination asked to wait), failed (this node cannot deliver).",
			[]string{"sink", "state"}, nil),
		inFlight: prometheus.NewDesc(namespace+"_sink_in_flight", "Running attempts of this node.", []string{"sink"}, nil),
		sinks:    make(map[string]evaluatedSink),
	}
}

func (e *evaluatedSinks) set(sink string, change func(*evaluatedSink)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sinks[sink]
	change(&s)
	e.sinks[sink] = s
}

func (e *evaluatedSinks) remove(sink string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sinks, sink)
}

// Describe implements [prometheus.Collector].
func (e *evaluatedSinks) Describe(ch chan<- *prometheus.Desc) {
	ch <- e.state
	ch <- e.inFlight
}

// Collect implements [prometheus.Collector].
func (e *evaluatedSinks) Collect(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for sink, s := range e.sinks {
		if s.state == nil || s.inFlight == nil {
			continue // the sink is being opened
		}
		current := s.state()
		for _, state := range adminapi.SinkStates() {
			if state == adminapi.SinkRemoved {
				continue // the metrics of a removed sink end
			}
			ch <- prometheus.MustNewConstMetric(e.state, prometheus.GaugeValue, boolToFloat(state == current), sink, string(state))
		}
		ch <- prometheus.MustNewConstMetric(e.inFlight, prometheus.GaugeValue, float64(s.inFlight()), sink)
	}
}
