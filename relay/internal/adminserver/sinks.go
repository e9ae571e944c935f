package adminserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
)

// What [Sinks] refuse.
var (
	ErrNoSink        = errors.New("there is no such sink")
	ErrConfigured    = errors.New("the sink is configured")
	ErrNotConfigured = errors.New("the sink is not configured")
	ErrAfter         = errors.New("after is neither a cursor nor a time")
)

// Sinks is what an operator can do with the sinks. Its methods may be called concurrently and honour their context; an
// error is one of this package, of deliver, a *relay.Error, or means that Redis is away.
type Sinks interface {
	// List returns all sinks by name: those configured, and those that have left the configuration and are not
	// forgotten.
	List(ctx context.Context) ([]Sink, error)
	// Show returns one, or ErrNoSink; so do all other methods.
	Show(ctx context.Context, name string) (Sink, error)
	// Pause, Resume, Retry, Replay and Test return ErrNotConfigured for a sink that has left the configuration.
	Pause(ctx context.Context, name string) error
	// Resume enables a disabled sink too, and lets one that is down be probed at once.
	Resume(ctx context.Context, name string) error
	// Retry makes due at once what waits for another attempt, of a sink that is active, and lets one that is down be probed at
	// once. It returns how many were not due before.
	Retry(ctx context.Context, name string) (int, error)
	// Replay gives the sink again what it was given behind a cursor or since a time (RFC 3339).
	Replay(ctx context.Context, name, after string) (delivery.ReplayResult, error)
	// Test makes one attempt with a sample that is stored nowhere.
	Test(ctx context.Context, name string) (delivery.Attempt, error)
	// Forget removes everything about a sink that is not configured, or returns ErrConfigured.
	Forget(ctx context.Context, name string, deadLetters bool) error

	DeadLetters(ctx context.Context, name string, sel delivery.Selection) (delivery.Page, error)
	DeadLetter(ctx context.Context, name, id string) (*delivery.DeadLetterContent, error)
	ReplayDeadLetters(ctx context.Context, name string, ids []string) (delivery.ChangeResult, error)
	ReplaySelectedDeadLetters(ctx context.Context, name string, sel delivery.Selection) (delivery.ChangeResult, error)
	DropDeadLetters(ctx context.Context, name string, ids []string) (delivery.ChangeResult, error)
	DropSelectedDeadLetters(ctx context.Context, name string, sel delivery.Selection) (delivery.ChangeResult, error)
}

// StateFailed is the state of a sink that is active and that this node cannot deliver to, such as a plugin that does not
// start. It is tried again all the time, and keeps its backlog.
const StateFailed delivery.State = "failed"

// The states of a sink that is active and whose destination this node leaves alone for a while.
const (
	// StateDown is that of one whose destination failed many times in a row. One attempt at a time is made as a probe.
	StateDown delivery.State = "down"
	// StateThrottled is that of one whose destination asked for a rest.
	StateThrottled delivery.State = "resting"
)

// Sink is what the API says of a sink.
type Sink struct {
	Name string `json:"name"`
	// Type is empty for a sink that is not configured.
	Type string `json:"type"`
	// Configured is false for one that has left the configuration of this node.
	Configured bool           `json:"configured"`
	State      delivery.State `json:"state"`
	Reason     string         `json:"reason,omitempty"`
	Since      *time.Time     `json:"since,omitempty"`
	// ProbeAt is when this node's next probe may begin, RestingUntil when the rest ends. They are left out otherwise.
	ProbeAt        *time.Time `json:"down_until,omitempty"`
	ThrottledUntil *time.Time `json:"resting_until,omitempty"`
	Topics         string     `json:"topics"`
	// Backlog is what waits in the queue, Gathering what waits for its digest, Parked what waits for another attempt, Dead how
	// many dead letters there are.
	Backlog     int64 `json:"backlog"`
	Gathering   int64 `json:"gathering"`
	Parked      int64 `json:"parked"`
	DeadLetters int64 `json:"dead"`
	// InFlight is how many attempts this node is making.
	InFlight int64 `json:"in_flight"`
	// OldestSeconds is how long the oldest delivery that is not dead has waited, zero where none waits.
	OldestSeconds float64 `json:"oldest_seconds"`
	// LastSuccess is left out where nothing was delivered yet.
	LastSuccess *time.Time `json:"last_success,omitempty"`
	// LastError says how the attempt failed that failed last, in at most 512 bytes and without secrets, LastErrorAt when. They
	// stay when something is delivered later, and are left out where none ever failed.
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
	// Delivered and Failed (by reason) count attempts, Retried those beyond a delivery's first: on all nodes, since Redis
	// knows the sink. They are complete for this node; another tells what it did within a second, and one that is killed no
	// more what it did in its last.
	Delivered int64            `json:"delivered"`
	Retried   int64            `json:"retried"`
	Failed    map[string]int64 `json:"failed"`
	// Dropped counts what its backlog had no room for, likewise: the oldest of its queue and of its dead letters.
	Dropped int64 `json:"dropped"`
}

func listSinks(s Sinks, r *http.Request) (int, any, error) {
	list, err := s.List(r.Context())
	if list == nil {
		list = []Sink{}
	}
	return http.StatusOK, list, err
}

func showSink(s Sinks, r *http.Request) (int, any, error) {
	one, err := s.Show(r.Context(), r.PathValue("name"))
	return http.StatusOK, one, err
}

func pauseSink(s Sinks, r *http.Request) (int, any, error) {
	return changeState(r, s, s.Pause)
}

func resumeSink(s Sinks, r *http.Request) (int, any, error) {
	return changeState(r, s, s.Resume)
}

func retrySink(s Sinks, r *http.Request) (int, any, error) {
	if err := read(r, &struct{}{}); err != nil {
		return 0, nil, err
	}
	n, err := s.Retry(r.Context(), r.PathValue("name"))
	return http.StatusAccepted, struct {
		// Due are tried as soon as the sink's rate, its concurrency and its destination allow.
		Due int `json:"due"`
	}{n}, err
}

func changeState(r *http.Request, s Sinks, change func(context.Context, string) error) (int, any, error) {
	if err := read(r, &struct{}{}); err != nil {
		return 0, nil, err
	}
	if err := change(r.Context(), r.PathValue("name")); err != nil {
		return 0, nil, err
	}
	return showSink(s, r)
}

func replaySink(s Sinks, r *http.Request) (int, any, error) {
	var request struct {
		After string `json:"after"`
	}
	if err := read(r, &request); err != nil {
		return 0, nil, err
	}
	if request.After == "" {
		return 0, nil, relay.NewError(relay.CodeMissingArgument, "after names the cursor or the time to begin behind").WithPointer("/after")
	}
	done, err := s.Replay(r.Context(), r.PathValue("name"), request.After)
	if errors.Is(err, delivery.ErrFull) {
		err = backlogFullError(done.Scheduled, "raise backlog and repeat it")
		if done.Next != "" {
			err = backlogFullError(done.Scheduled, "mend the receiver and wait until there is room, or raise backlog, then go on behind "+done.Next)
		}
	}
	return http.StatusAccepted, struct {
		Replayed int `json:"replayed"`
		// Waiting were left alone, since they are to be delivered anyway.
		Waiting int `json:"waiting"`
		// Complete is false where the log no longer reaches back to after.
		Complete bool `json:"complete"`
	}{done.Scheduled, done.Waiting, done.Complete}, err
}

// backlogFullError says how far a replay came where the delay queue took no more, and what to do.
func backlogFullError(done int, then string) error {
	return relay.NewError(relay.CodeInvalidState, fmt.Sprintf("the sink's delay queue holds as many deliveries as its "+
		"backlog allows; %d were taken before: %s", done, then)).WithExtra("replayed", done)
}

func testSink(s Sinks, r *http.Request) (int, any, error) {
	if err := read(r, &struct{}{}); err != nil {
		return 0, nil, err
	}
	a, err := s.Test(r.Context(), r.PathValue("name"))
	return http.StatusOK, struct {
		Outcome      string `json:"outcome"`
		Status       int    `json:"status,omitempty"`
		Milliseconds int64  `json:"milliseconds"`
		Error        string `json:"error,omitempty"`
		Answer       string `json:"answer,omitempty"`
	}{a.Outcome, a.Status, a.Milliseconds, a.Error, a.Response}, err
}

func forgetSink(s Sinks, r *http.Request) (int, any, error) {
	var request struct {
		DeadLetters bool `json:"dead_letters"`
	}
	if err := read(r, &request); err != nil {
		return 0, nil, err
	}
	err := s.Forget(r.Context(), r.PathValue("name"), request.DeadLetters)
	return http.StatusOK, map[string]string{"forgotten": r.PathValue("name")}, err
}
