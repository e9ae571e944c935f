package adminserver

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/source/sourcestore"
)

// Sources is what an operator can see of the upstreams. Its methods may be called concurrently and honour their context; an
// error means that Redis is away.
type Sources interface {
	// List returns the configured sources by name.
	List(ctx context.Context) ([]Source, error)
}

// SourceNotRead is the state of a source that no node reads at the moment. The others are source's own.
const SourceNotRead = "unread"

// Source is one upstream, as the node that reads it sees it, with its figures of all nodes since it was configured first.
type Source struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"`
	URL    string   `json:"url"`
	Hub    string   `json:"hub_id,omitempty"`
	Topics []string `json:"topics"`
	// State is connecting, connected, waiting, refused or unread.
	State  string     `json:"state"`
	Reason string     `json:"reason,omitempty"`
	Node   string     `json:"node,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	// Next is when a source that is not connected tries again.
	Next *time.Time `json:"next_attempt,omitempty"`
	// Resumes tells whether the upstream has given cursors, so that nothing is missed while nobody reads it.
	Resumes      bool       `json:"resumes"`
	LastStoredAt *time.Time `json:"last_notification,omitempty"`
	Received     int64      `json:"received"`
	Quarantined  int64      `json:"quarantined"`
	// Looped counts what was this relay's own and came back in a circle of relays; it was left out.
	Looped int64 `json:"returned"`
	Gaps   int64 `json:"gaps"`
}

func (o *apiHandler) handleSources(pattern string, sources func() Sources) {
	if sources == nil {
		return
	}
	o.handle(pattern, maxRequest, adminapi.RoleViewer, func(r *http.Request) (int, any, error) {
		s := sources()
		if s == nil {
			return 0, nil, errStarting()
		}
		list, err := s.List(r.Context())
		return http.StatusOK, list, err
	}, http.MethodGet, http.MethodHead)
}

// sourceMetrics count what comes from upstreams.
type sourceMetrics struct {
	connected *prometheus.GaugeVec
	messages  *prometheus.CounterVec
	gaps      *prometheus.CounterVec
	failures  *prometheus.CounterVec
	last      *prometheus.GaugeVec
}

func newSourceMetrics(registry *prometheus.Registry) sourceMetrics {
	s := sourceMetrics{
		connected: gauges("source_connected", "1 while this node reads the source's upstream, else 0; the sum over the nodes should be 1.", "source"),
		messages:  counters("source_messages_total", "Messages that this node took over from an upstream, by outcome: stored, quarantined, or returned (this relay's own that came back).", "source", "outcome"),
		gaps:      counters("source_gaps_total", "Times that something of an upstream may be missing.", "source"),
		failures:  counters("source_failures_total", "Connections to an upstream that ended, and attempts that failed.", "source"),
		last:      gauges("source_last_notification_timestamp_seconds", "When this node stored a notification of the upstream last; 0 for never.", "source"),
	}
	registry.MustRegister(s.connected, s.messages, s.gaps, s.failures, s.last)
	return s
}

// InitSource shows every figure of a source at zero before anything happens.
func (m *Metrics) InitSource(source string) {
	m.SourceConnected(source, false)
	m.SourceStored(source, sourcestore.Batch{})
	m.sources.failures.WithLabelValues(source)
	m.sources.last.WithLabelValues(source)
}

// RemoveSource shows no figure of a source any more, which has left the configuration.
func (m *Metrics) RemoveSource(source string) {
	of := prometheus.Labels{"source": source}
	m.sources.connected.DeletePartialMatch(of)
	m.sources.messages.DeletePartialMatch(of)
	m.sources.gaps.DeletePartialMatch(of)
	m.sources.failures.DeletePartialMatch(of)
	m.sources.last.DeletePartialMatch(of)
}

// SourceConnected tells whether this node reads the upstream.
func (m *Metrics) SourceConnected(source string, connected bool) {
	m.sources.connected.WithLabelValues(source).Set(boolToFloat(connected))
}

// SourceFailed counts one connection, or one attempt to connect, that ended.
func (m *Metrics) SourceFailed(source string) { m.sources.failures.WithLabelValues(source).Inc() }

// SourceStored counts what a batch brought.
func (m *Metrics) SourceStored(source string, b sourcestore.Batch) {
	for _, c := range []struct {
		outcome string
		n       int
	}{{"stored", b.Received()}, {"quarantined", len(b.Rejected)}, {"returned", b.Looped}} {
		m.sources.messages.WithLabelValues(source, c.outcome).Add(float64(c.n))
	}
	m.sources.gaps.WithLabelValues(source).Add(float64(b.Gaps))
	if b.Received() > 0 {
		m.sources.last.WithLabelValues(source).SetToCurrentTime()
	}
}
