package retry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// fakeStore returns one result for every request.
type fakeStore struct {
	mu      sync.Mutex
	result  store.PollResult
	version string
}

func (s *fakeStore) Poll(_ context.Context, requests []store.PollRequest) []store.PollResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	results := make([]store.PollResult, len(requests))
	for i := range results {
		results[i] = s.result
	}
	s.result.Claims = nil
	return results
}

func (s *fakeStore) Version(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, nil
}

func (s *fakeStore) set(version string, r store.PollResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.result = version, r
}

// poll describes a call of Poll.
type poll struct {
	at             time.Duration // since the start of the test
	due, withState bool
}

type fakeSink struct {
	start time.Time
	retry func(context.Context)

	mu        sync.Mutex
	polls     []poll
	retries   int
	changes   int
	isStopped bool
}

func (s *fakeSink) Poll(due, withState bool) store.PollRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls = append(s.polls, poll{time.Since(s.start), due, withState})
	return store.PollRequest{Sink: "s", WithState: withState}
}

func (s *fakeSink) Apply(_ context.Context, r store.PollResult) error { return r.Err }

func (s *fakeSink) Retry(ctx context.Context, _ store.Claim) {
	s.mu.Lock()
	s.retries++
	s.mu.Unlock()
	s.retry(ctx)
}

func (s *fakeSink) OnChange() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
}

func (s *fakeSink) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isStopped = true
}

// last waits until the scheduler is idle, and returns the last poll.
func (s *fakeSink) last() poll {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polls[len(s.polls)-1]
}

// run runs a scheduler with one sink in a bubble of fake time.
func run(t *testing.T, test func(*testing.T, *fakeStore, *Handle, *fakeSink)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis := &fakeStore{result: store.PollResult{NextDue: -1}}
		s := NewScheduler(Options{Retries: redis, States: redis, Grace: time.Second})
		sink := &fakeSink{start: time.Now(), retry: func(context.Context) {}}
		h := s.Register("s")
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = s.Run(ctx) })
		h.Attach(sink)
		synctest.Wait()
		test(t, redis, h, sink)
		cancel()
		running.Wait()
		synctest.Wait()
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if !sink.isStopped {
			t.Error("the sink was not stopped")
		}
	})
}

func TestScheduler_WakeAndIdlePolls(t *testing.T) {
	run(t, func(t *testing.T, _ *fakeStore, h *Handle, sink *fakeSink) {
		if p := sink.last(); !p.due || !p.withState || p.at != 0 {
			t.Errorf("first poll: got %+v, want a due one with the state at once", p)
		}
		h.Wake(700 * time.Millisecond)
		h.Wake(time.Hour) // does not replace the earlier one
		time.Sleep(800 * time.Millisecond)
		if p := sink.last(); !p.due || p.withState || p.at != 700*time.Millisecond {
			t.Errorf("after Wake: got %+v, want a due poll at 700ms", p)
		}
		time.Sleep(7 * time.Second)
		if p := sink.last(); p.due || !p.withState {
			t.Errorf("idle poll: got %+v, want one with the state that is not due", p)
		}
	})
}

func TestScheduler_ErrorRepeatsPollForState(t *testing.T) {
	run(t, func(t *testing.T, redis *fakeStore, h *Handle, sink *fakeSink) {
		redis.set("", store.PollResult{Err: errors.New("no reply")})
		time.Sleep(7 * time.Second) // an idle poll, which requests the state
		first := sink.last()
		time.Sleep(errorRetryInterval)
		if p := sink.last(); !p.due || !p.withState || p.at == first.at {
			t.Errorf("after an error: got %+v, want a due poll with the state", p)
		}
		redis.set("", store.PollResult{NextDue: -1})
		h.Wake(0)
	})
}

func TestScheduler_ChangePollsState(t *testing.T) {
	run(t, func(t *testing.T, redis *fakeStore, _ *Handle, sink *fakeSink) {
		redis.set("2", store.PollResult{NextDue: -1})
		time.Sleep(versionPollInterval)
		if p := sink.last(); !p.withState || p.at != versionPollInterval || sink.changes == 0 {
			t.Errorf("after a change: got %+v and %d calls of OnChange", p, sink.changes)
		}
	})
}

func TestHandle_DetachWaitsForRetries(t *testing.T) {
	run(t, func(t *testing.T, redis *fakeStore, h *Handle, sink *fakeSink) {
		sink.retry = func(ctx context.Context) { <-ctx.Done() }
		redis.set("", store.PollResult{NextDue: -1, Claims: []store.Claim{{ID: "a"}, {ID: "b"}}})
		h.Wake(0)
		sink.last()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		h.Detach(ctx)
		if elapsed := time.Since(start); elapsed != 5*time.Second || sink.retries != 2 {
			t.Errorf("Detach returned after %s with %d retries, want 5s and 2", elapsed, sink.retries)
		}
		polls := len(sink.polls)
		h.Wake(0)
		if sink.last(); len(sink.polls) != polls {
			t.Error("a detached sink was polled")
		}
	})
}
