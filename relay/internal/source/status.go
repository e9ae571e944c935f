package source

import (
	"context"
	"encoding/json"
	"regexp"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// The states of a source, as the node that reads it sees it.
const (
	stateConnecting = "connecting"
	stateConnected  = "connected"
	stateWaiting    = "waiting" // for the next attempt
	stateRefused    = "refused" // the upstream refuses, or is no relay: somebody has to mend something
)

const (
	// statusEvery is how often the status is told, and statusKeep how long it counts.
	statusEvery = 3 * time.Second
	statusKeep  = 10 * time.Second
	// maxReason bounds what is told of an error.
	maxReason = 500
)

// Status is how the node that reads a source finds its upstream.
type Status struct {
	Node  string `json:"node"`
	State string `json:"state"`
	// Reason says why it is not connected.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// Next is when it tries again.
	Next *time.Time `json:"next,omitempty"`
}

// statusTracker is a Status that changes. It may be used concurrently.
type statusTracker struct {
	mu      sync.Mutex
	current Status
	changed chan struct{}
}

func newStatus(node string) *statusTracker {
	return &statusTracker{current: Status{Node: node, State: stateConnecting, Since: utcNow()}, changed: make(chan struct{}, 1)}
}

func utcNow() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func (s *statusTracker) setConnected() { s.setStatus(Status{State: stateConnected}) }

// setDisconnected says that there is no connection, and that the next is tried after wait.
func (s *statusTracker) setDisconnected(state string, why error, wait time.Duration) {
	next := utcNow().Add(wait)
	s.setStatus(Status{State: state, Reason: shortError(why), Next: &next})
}

func (s *statusTracker) setStatus(now Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now.Node, now.Since = s.current.Node, s.current.Since
	if now.State != s.current.State {
		now.Since = utcNow()
	}
	s.current = now
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

// publishStatus tells all nodes how the source is, until ctx ends. Then, after statusKeep, nobody reads it.
func (t *session) publishStatus(ctx context.Context) error {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		text, err := json.Marshal(t.status.currentStatus())
		if err != nil {
			return err
		}
		// Redis being away is said by whoever stores.
		told, cancel := context.WithTimeout(ctx, storeTime)
		_ = t.opt.Store.SetStatus(told, t.opt.Name, text, statusKeep)
		cancel()
		relay.Sleep(ctx, 100*time.Millisecond) // an upstream that comes and goes is told of ten times a second at most
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-t.status.changed:
		}
	}
}

// logRepeatInterval is how often the log repeats what goes on.
const logRepeatInterval = time.Minute

// logThrottle keeps the log short: what goes on for long or comes again and again is worth a line when it begins, and then one
// a minute. It may be used concurrently.
type logThrottle struct {
	now func() time.Time

	mu   sync.Mutex
	next map[string]time.Time
}

func newSpeaker() *logThrottle { return &logThrottle{now: time.Now, next: make(map[string]time.Time)} }

// allow tells whether something is worth a line. Reasons that differ in a port alone are the same.
func (s *logThrottle) allow(what string, why error) bool {
	key := what
	if why != nil {
		key += withoutPorts(why.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Before(s.next[key]) {
		return false
	}
	if len(s.next) > 100 { // reasons without end
		clear(s.next)
	}
	s.next[key] = now.Add(logRepeatInterval)
	return true
}

// withoutPorts leaves out what has the digits of a port that the system has chosen.
func withoutPorts(text string) string {
	return regexp.MustCompile(`[0-9]{5,}`).ReplaceAllString(text, "")
}

// shortError is an error as the log and operators see it.
func shortError(err error) string { return relay.Truncate(err.Error(), maxReason) }
