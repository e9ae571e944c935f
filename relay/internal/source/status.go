package source

import (
	"context"
	"encoding/json"
	"regexp"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/logsample"
	"github.com/hubrelay/hubrelay/relay"
)

// States of a source on the node that reads it.
const (
	stateConnecting = "connecting"
	stateConnected  = "connected"
	stateRetrying   = "retrying" // the next attempt is scheduled
	stateRejected   = "rejected" // the upstream rejects the connection or is not a relay; an operator must fix this
)

const (
	// statusInterval is the time between reports of the status, and statusTTL the time for which a report is valid.
	statusInterval = 3 * time.Second
	statusTTL      = 10 * time.Second
	// maxReason is the maximum length of an error text, in bytes.
	maxReason = 500
)

// Status is the status of a source on the node that reads it.
type Status struct {
	Node  string `json:"node"`
	State string `json:"state"`
	// Reason explains why the source is not connected.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// Next is the time of the next attempt.
	Next *time.Time `json:"next,omitempty"`
}

// statusTracker tracks the current Status. It may be used concurrently.
type statusTracker struct {
	mu      sync.Mutex
	current Status
	changed chan struct{}
}

func newStatus(node string) *statusTracker {
	return &statusTracker{
		current: Status{Node: node, State: stateConnecting, Since: utcNow()}, changed: make(chan struct{}, 1),
	}
}

func utcNow() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func (s *statusTracker) setConnected() { s.setStatus(Status{State: stateConnected}) }

// setDisconnected records that the source is not connected and retries after delay.
func (s *statusTracker) setDisconnected(state string, err error, delay time.Duration) {
	next := utcNow().Add(delay)
	s.setStatus(Status{State: state, Reason: shortError(err), Next: &next})
}

func (s *statusTracker) setStatus(next Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next.Node, next.Since = s.current.Node, s.current.Since
	if next.State != s.current.State {
		next.Since = utcNow()
	}
	s.current = next
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *statusTracker) currentStatus() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// publishStatus publishes the status for all nodes until ctx ends. The last status expires after statusTTL.
func (s *session) publishStatus(ctx context.Context) error {
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	for {
		text, err := json.Marshal(s.status.currentStatus())
		if err != nil {
			return err
		}
		// storeLoop logs if Redis is unreachable.
		writeCtx, cancel := context.WithTimeout(ctx, storeTimeout)
		_ = s.opt.Store.SetStatus(writeCtx, s.opt.Name, text, statusTTL)
		cancel()
		await.Duration(ctx, 100*time.Millisecond) // At most ten updates per second, if the connection changes often.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-s.status.changed:
		}
	}
}

// logRepeatInterval is the minimum time between equal log records.
const logRepeatInterval = time.Minute

// logThrottle limits repeated log records to one per minute. It may be used concurrently.
type logThrottle struct {
	now func() time.Time
	// total limits different records, because an upstream can choose the text of its errors.
	total *logsample.Limiter

	mu   sync.Mutex
	next map[string]time.Time
}

// maxLogRecords is the maximum number of log records per minute that an upstream can cause.
const maxLogRecords = 30

func newLogThrottle() *logThrottle {
	return &logThrottle{now: time.Now, total: logsample.New(maxLogRecords, time.Minute, nil), next: make(map[string]time.Time)}
}

// allow reports whether to log an event now. Errors that differ only in port numbers count as equal.
func (l *logThrottle) allow(event string, err error) bool {
	key := event
	if err != nil {
		key += withoutPorts(err.Error())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Before(l.next[key]) {
		return false
	}
	if _, ok := l.total.Allow(); !ok {
		return false
	}
	if len(l.next) > 100 { // too many different errors
		clear(l.next)
	}
	l.next[key] = now.Add(logRepeatInterval)
	return true
}

// withoutPorts removes numbers that may be ephemeral ports.
func withoutPorts(text string) string {
	return regexp.MustCompile(`[0-9]{5,}`).ReplaceAllString(text, "")
}

// shortError returns the text of an error for logs and operators.
func shortError(err error) string { return relay.Truncate(err.Error(), maxReason) }
