package adminserver

import (
	"context"
	"net/http"
	"strings"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

// Sinks controls the sinks. The service of package delivery implements and documents it. Its methods may be called
// concurrently and honor ctx. An error is a *relay.Error, an error of package store, or means that Redis is unreachable.
type Sinks interface {
	ListSinks(ctx context.Context, r adminapi.PageRequest) (adminapi.Page[adminapi.Sink], error)
	ShowSink(ctx context.Context, name string) (adminapi.Sink, error)
	PauseSink(ctx context.Context, name, actor string) error
	ResumeSink(ctx context.Context, name, actor string) error
	RetrySink(ctx context.Context, name string) (adminapi.RetryResult, error)
	ReplaySink(ctx context.Context, name string, selection replay.Selection) (replay.Result, error)
	TestSink(ctx context.Context, name string) (store.Attempt, error)
	ForgetSink(ctx context.Context, name string, deadLetters bool) error
	ShowEvent(ctx context.Context, id string) (adminapi.EventDetails, error)
	ListDeliveries(ctx context.Context, sel delivery.Selection) (adminapi.Page[adminapi.Delivery], error)
	RetryDeliveries(ctx context.Context, name string, ids []string) (adminapi.ChangeResult, error)
	DropDeliveries(ctx context.Context, name string, ids []string) (adminapi.ChangeResult, error)

	ListDeadLetters(ctx context.Context, name string, sel store.Selection) (store.Page, error)
	ShowDeadLetter(ctx context.Context, name, id string) (*store.DeadLetterContent, error)
	ReplayDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error)
	ReplaySelectedDeadLetters(ctx context.Context, name string, sel store.Selection) (store.ChangeResult, error)
	DropDeadLetters(ctx context.Context, name string, ids []string) (store.ChangeResult, error)
	DropSelectedDeadLetters(ctx context.Context, name string, sel store.Selection) (store.ChangeResult, error)
}

func (h *apiHandler) handleSinks(s Sinks) {
	handleOperation(h, adminapi.ListSinks(), withComponent(s, listSinks))
	handleOperation(h, adminapi.ShowSink(), withComponent(s, showSink))
	handleOperation(h, adminapi.PauseSink(), withComponent(s, pauseSink))
	handleOperation(h, adminapi.ResumeSink(), withComponent(s, resumeSink))
	handleOperation(h, adminapi.RetrySink(), withComponent(s, retrySink))
	handleOperation(h, adminapi.ReplaySink(), withComponent(s, replaySink))
	handleOperation(h, adminapi.TestSink(), withComponent(s, testSink))
	handleOperation(h, adminapi.ForgetSink(), withComponent(s, forgetSink))
}

func listSinks(s Sinks, r *http.Request, request adminapi.PageRequest) (adminapi.Page[adminapi.Sink], error) {
	return s.ListSinks(r.Context(), request)
}

func showSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Sink, error) {
	return s.ShowSink(r.Context(), r.PathValue("name"))
}

func pauseSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Sink, error) {
	return changeState(s, r, s.PauseSink)
}

func resumeSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Sink, error) {
	return changeState(s, r, s.ResumeSink)
}

func changeState(s Sinks, r *http.Request, change func(ctx context.Context, sink, actor string) error) (adminapi.Sink, error) {
	if err := change(r.Context(), r.PathValue("name"), actorOf(r)); err != nil {
		return adminapi.Sink{}, err
	}
	return s.ShowSink(r.Context(), r.PathValue("name"))
}

func retrySink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.RetryResult, error) {
	return s.RetrySink(r.Context(), r.PathValue("name"))
}

// backlogFullError reports a replay that was stopped by the backlog limit.
func backlogFullError(count int, advice string) error {
	return relay.NewError(relay.CodeInvalidState,
		"the scheduled retries of the sink have reached backlog or backlog_bytes: "+advice).WithExtra("replayed", count)
}

func testSink(s Sinks, r *http.Request, _ adminapi.Empty) (adminapi.Attempt, error) {
	a, err := s.TestSink(r.Context(), r.PathValue("name"))
	if err == nil {
		*auditDetail(r) = strings.TrimSuffix(a.Outcome+": "+a.Error, ": ")
	}
	return newAttempt(a), err
}

func newAttempt(a store.Attempt) adminapi.Attempt {
	return adminapi.Attempt{
		Time: a.Time, Outcome: a.Outcome, Status: a.Status, Error: a.Error, DurationMS: a.DurationMS,
		Response: a.Response,
	}
}

func forgetSink(s Sinks, r *http.Request, request adminapi.ForgetRequest) (adminapi.ForgetResult, error) {
	name := r.PathValue("name")
	return adminapi.ForgetResult{Forgotten: name}, s.ForgetSink(r.Context(), name, request.DeadLetters)
}
