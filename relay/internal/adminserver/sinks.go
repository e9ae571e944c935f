package adminserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
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
// above, an error of package store, a *relay.Error, or means that Redis is unreachable.
type Sinks interface {
	// List returns all sinks sorted by name: configured ones, and removed ones that were not forgotten.
	List(ctx context.Context) ([]adminapi.Sink, error)
	// Show returns one sink. Like all following methods it returns ErrNoSink for an unknown name.
	Show(ctx context.Context, name string) (adminapi.Sink, error)
	// Pause, Resume, Retry, Replay and Test return ErrNotConfigured for a sink that was removed from the
	// configuration.
	Pause(ctx context.Context, name string) error
	// Resume also enables a disabled sink, and starts a probe if the circuit breaker is open.
	Resume(ctx context.Context, name string) error
	// Retry makes all scheduled retries of an active sink due immediately, and starts a probe if the circuit breaker
	// is open.
	Retry(ctx context.Context, name string) (adminapi.RetryResult, error)
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

func (h *apiHandler) handleSinks(open func() Sinks) {
	handleOperation(h, adminapi.ListSinks(), onceStarted(open, listSinks))
	handleOperation(h, adminapi.ShowSink(), onceStarted(open, showSink))
	handleOperation(h, adminapi.PauseSink(), onceStarted(open, pauseSink))
	handleOperation(h, adminapi.ResumeSink(), onceStarted(open, resumeSink))
	handleOperation(h, adminapi.RetrySink(), onceStarted(open, retrySink))
	handleOperation(h, adminapi.ReplaySink(), onceStarted(open, replaySink))
	handleOperation(h, adminapi.TestSink(), onceStarted(open, testSink))
	handleOperation(h, adminapi.ForgetSink(), onceStarted(open, forgetSink))
}

func listSinks(s Sinks, r *http.Request, _ adminapi.Empty) ([]adminapi.Sink, error) {
	list, err := s.List(r.Context())
	if list == nil {
		list = []adminapi.Sink{}
	}
	return list, err
}

func showSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Sink, error) {
	return s.Show(r.Context(), r.PathValue("name"))
}

func pauseSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Sink, error) {
	return changeState(s, r, s.Pause)
}

func resumeSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Sink, error) {
	return changeState(s, r, s.Resume)
}

func changeState(s Sinks, r *http.Request, change func(context.Context, string) error) (adminapi.Sink, error) {
	if err := change(r.Context(), r.PathValue("name")); err != nil {
		return adminapi.Sink{}, err
	}
	return s.Show(r.Context(), r.PathValue("name"))
}

func retrySink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.RetryResult, error) {
	return s.Retry(r.Context(), r.PathValue("name"))
}

// backlogFullError reports a replay that was stopped by the backlog limit.
func backlogFullError(count int, advice string) error {
	return relay.NewError(relay.CodeInvalidState, fmt.Sprintf("the sink has as many scheduled retries as its "+
		"backlog allows; %d were scheduled before: %s", count, advice)).WithExtra("replayed", count)
}

func testSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Attempt, error) {
	a, err := s.Test(r.Context(), r.PathValue("name"))
	return newAttempt(a), err
}

func newAttempt(a store.Attempt) adminapi.Attempt {
	return adminapi.Attempt{
		Time: a.Time, Outcome: a.Outcome, Status: a.Status, Error: a.Error, DurationMS: float64(a.Milliseconds),
		Response: a.Response,
	}
}

func forgetSink(s Sinks, r *http.Request, request adminapi.ForgetRequest) (adminapi.ForgetResult, error) {
	name := r.PathValue("name")
	return adminapi.ForgetResult{Forgotten: name}, s.Forget(r.Context(), name, request.DeadLetters)
}
