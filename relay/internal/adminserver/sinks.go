package adminserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// Errors of [Sinks].
var (
	ErrNoSink        = errors.New("there is no such sink")
	ErrConfigured    = errors.New("the sink is configured")
	ErrNotConfigured = errors.New("the sink is not configured")
	ErrAfter         = errors.New("after is neither a cursor nor a time")
)

// Sinks controls the sinks. Its methods may be called concurrently and honor ctx. An error is one of the errors
// above, an error of package delivery, a *relay.Error, or means that Redis is unreachable.
type Sinks interface {
	// List returns all sinks sorted by name: configured ones, and removed ones that were not forgotten.
	List(ctx context.Context) ([]Sink, error)
	// Show returns one sink. Like all following methods it returns ErrNoSink for an unknown name.
	Show(ctx context.Context, name string) (Sink, error)
	// Pause, Resume, Retry, Replay and Test return ErrNotConfigured for a sink that was removed from the
	// configuration.
	Pause(ctx context.Context, name string) error
	// Resume also enables a disabled sink, and starts a probe if the circuit breaker is open.
	Resume(ctx context.Context, name string) error
	// Retry makes all scheduled retries of an active sink due immediately, and starts a probe if the circuit breaker
	// is open.
	Retry(ctx context.Context, name string) (RetryResult, error)
	// Replay delivers selected notifications of the log again.
	Replay(ctx context.Context, name string, selection ReplaySelection) (replay.Result, error)
	// Test makes one attempt with a sample that is not stored.
	Test(ctx context.Context, name string) (store.Attempt, error)
	// Forget deletes everything about a sink that is not configured. Otherwise it returns ErrConfigured.
	Forget(ctx context.Context, name string, deadLetters bool) error

	DeadLetters(ctx context.Context, name string, sel store.Selection) (store.Page, error)
	DeadLetter(ctx context.Context, name, id string) (*store.DeadLetterContent, error)
	ReplayDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error)
	ReplaySelectedDeadLetters(ctx context.Context, name string, sel store.Selection) (store.ChangeResult, error)
	DropDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error)
	DropSelectedDeadLetters(ctx context.Context, name string, sel store.Selection) (store.ChangeResult, error)
}

// StateFailed is the state of an active sink that this node cannot deliver to, such as a plugin that does not
// start. It is retried and keeps its backlog.
const StateFailed store.State = "failed"

// States of an active sink whose destination gets no regular attempts from this node.
const (
	// StateDown means that the circuit breaker is open. One probe at a time is sent.
	StateDown store.State = "down"
	// StateThrottled means that the destination asked for a pause.
	StateThrottled store.State = "resting"
)

// Sink is a sink in the API.
type Sink struct {
	Name string `json:"name"`
	// Type is empty for a sink that is not configured.
	Type string `json:"type"`
	// Configured is false for a sink that was removed from the configuration of this node.
	Configured bool        `json:"configured"`
	State      store.State `json:"state"`
	Reason     string      `json:"reason,omitempty"`
	Since      *time.Time  `json:"since,omitempty"`
	// ProbeAt is the earliest time of the next probe, ThrottledUntil the end of the pause. Otherwise they are
	// omitted.
	ProbeAt        *time.Time `json:"down_until,omitempty"`
	ThrottledUntil *time.Time `json:"resting_until,omitempty"`
	Topics         string     `json:"topics"`
	// Backlog is the number of notifications in the queue, Gathering in open digests. Parked is the number of
	// scheduled retries.
	Backlog     int64 `json:"backlog"`
	Gathering   int64 `json:"gathering"`
	Parked      int64 `json:"parked"`
	DeadLetters int64 `json:"dead"`
	// InFlight is the number of running attempts of this node.
	InFlight int64 `json:"in_flight"`
	// OldestSeconds is the age of the oldest undelivered notification, or 0.
	OldestSeconds float64 `json:"oldest_seconds"`
	// LastSuccess is omitted if nothing was delivered yet.
	LastSuccess *time.Time `json:"last_success,omitempty"`
	// LastError describes the last failed attempt, without secrets and in at most 512 bytes. LastErrorAt is its time.
	// Later successes do not clear them. They are omitted if no attempt has failed.
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
	// Delivered and Failed (by reason) count attempts, Retried those after the first attempt of a delivery. They are
	// totals of all nodes. They are up to date for this node and at most a second old for others. A killed node loses
	// the counts of its last second.
	Delivered int64            `json:"delivered"`
	Retried   int64            `json:"retried"`
	Failed    map[string]int64 `json:"failed"`
	// Dropped counts the oldest notifications and dead letters that were dropped because of the backlog limit, on all
	// nodes.
	Dropped int64 `json:"dropped"`
}

// RetryResult is the result of [Sinks.Retry]: the sink immediately before.
type RetryResult struct {
	// Due is the number of scheduled deliveries that start as soon as rate, concurrency and destination allow. Deliveries
	// that wait for an earlier one with their ordering key follow it and are not counted.
	Due int `json:"due"`
	Sink
}

func listSinks(s Sinks, r *http.Request) (int, any, error) {
	list, err := s.List(r.Context())
	if list == nil {
		list = []Sink{}
	}
	return http.StatusOK, list, err
}

func showSink(s Sinks, r *http.Request) (int, any, error) {
	sink, err := s.Show(r.Context(), r.PathValue("name"))
	return http.StatusOK, sink, err
}

func pauseSink(s Sinks, r *http.Request) (int, any, error) {
	return changeState(r, s, s.Pause)
}

func resumeSink(s Sinks, r *http.Request) (int, any, error) {
	return changeState(r, s, s.Resume)
}

func retrySink(s Sinks, r *http.Request) (int, any, error) {
	if err := decodeBody(r, &struct{}{}); err != nil {
		return 0, nil, err
	}
	result, err := s.Retry(r.Context(), r.PathValue("name"))
	return http.StatusAccepted, result, err
}

func changeState(r *http.Request, s Sinks, change func(context.Context, string) error) (int, any, error) {
	if err := decodeBody(r, &struct{}{}); err != nil {
		return 0, nil, err
	}
	if err := change(r.Context(), r.PathValue("name")); err != nil {
		return 0, nil, err
	}
	return showSink(s, r)
}

// backlogFullError reports a replay that was stopped by the backlog limit.
func backlogFullError(count int, advice string) error {
	return relay.NewError(relay.CodeInvalidState, fmt.Sprintf("the sink has as many scheduled retries as its "+
		"backlog allows; %d were scheduled before: %s", count, advice)).WithExtra("replayed", count)
}

func testSink(s Sinks, r *http.Request) (int, any, error) {
	if err := decodeBody(r, &struct{}{}); err != nil {
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
	if err := decodeBody(r, &request); err != nil {
		return 0, nil, err
	}
	err := s.Forget(r.Context(), r.PathValue("name"), request.DeadLetters)
	return http.StatusOK, map[string]string{"forgotten": r.PathValue("name")}, err
}
