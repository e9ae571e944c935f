// Package retry schedules when the retry queues of sinks are polled, and runs the claimed deliveries.
//
// One goroutine polls for all sinks of a node, with one Redis pipeline for up to 128 sinks. It knows neither how a
// delivery is attempted nor what its outcome means; that is the job of a [Sink].
package retry

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// idlePollInterval is the time between polls of a sink that was not woken. They find what other nodes scheduled,
	// and changes of the state.
	idlePollInterval = 5 * time.Second
	// pollGranularity aligns idle polls, so many sinks share few Redis pipelines.
	pollGranularity = 250 * time.Millisecond
	// errorRetryInterval is the delay after Redis did not respond.
	errorRetryInterval = time.Second
	// versionPollInterval is the time between checks whether an operator paused, resumed or replayed something.
	versionPollInterval = time.Second
	// maxSinksPerPoll is the maximum number of sinks in one Redis pipeline.
	maxSinksPerPoll = 128
	pollTimeout     = 5 * time.Second
)

// Sink is the scheduler's view of a sink.
//
// The scheduler calls Poll and then Apply, never concurrently for one sink.
type Sink interface {
	// Poll returns the request for the sink. It requests claims only if due is set, that is, if deliveries are expected
	// to be due. It must not block.
	Poll(due, withState bool) store.PollRequest
	// Apply processes the result of the last Poll. After an error, the sink is polled again soon.
	Apply(ctx context.Context, r store.PollResult) error
	// Retry attempts a claim of the result that was passed to Apply. It returns when the claim is settled or released.
	Retry(ctx context.Context, c store.Claim)
	// OnChange is called when an operator may have changed something about any sink. It must not block.
	OnChange()
	// Stop prevents new attempts.
	Stop()
}

// Store is the part of the store that the scheduler uses. [store.Retries] implements it.
type Store interface {
	Poll(ctx context.Context, requests []store.PollRequest) []store.PollResult
}

// VersionStore has a version of all sinks that each change increases. [store.States] implements it.
type VersionStore interface {
	Version(ctx context.Context) (string, error)
}

var (
	_ Store        = (*store.Retries)(nil)
	_ VersionStore = (*store.States)(nil)
)

// Options configure a [Scheduler].
type Options struct {
	Retries Store
	States  VersionStore
	// OnChange is called when an operator may have changed something, also after the start. After an error, it is called again.
	// It may be nil.
	OnChange func(ctx context.Context) error
	// Grace is the time for which running attempts may continue after the context of Run has ended.
	Grace time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Scheduler retries scheduled deliveries of all sinks of a node. Other nodes do the same, and each delivery is claimed
// by one of them. The claims of a killed node expire.
type Scheduler struct {
	o       Options
	wake    chan struct{}
	version string // the last result of VersionStore

	mu      sync.Mutex
	handles map[*Handle]struct{} // with a sink
}

// NewScheduler returns a Scheduler without sinks.
func NewScheduler(o Options) *Scheduler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{o: o, wake: make(chan struct{}, 1), handles: make(map[*Handle]struct{})}
}

// Register returns the handle of a sink, which is not polled before [Handle.Attach].
func (s *Scheduler) Register(name string) *Handle {
	h := &Handle{scheduler: s, name: name, nextPoll: time.Now(), due: true}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Run works until ctx ends and all claims are settled or released. Then it has stopped all sinks. It returns nil.
func (s *Scheduler) Run(ctx context.Context) error {
	// What waits for a destination that is down need not wait for the grace period.
	defer context.AfterFunc(ctx, s.stopAll)()
	// Attempts continue during the grace period, because a destination that has got a delivery would get it again.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(s.o.Grace):
			stop()
		case <-work.Done():
		}
	})()
	var running sync.WaitGroup
	defer running.Wait()
	defer s.stopAll() // Run can be faster than the callback
	timer := time.NewTimer(0)
	defer timer.Stop()
	version := time.NewTicker(versionPollInterval)
	defer version.Stop()
	for {
		timer.Reset(time.Until(s.nextPoll()))
		select {
		case <-ctx.Done():
			return nil
		case <-version.C:
			s.checkVersion(ctx)
		case <-timer.C:
		case <-s.wake:
		}
		if ctx.Err() != nil {
			return nil
		}
		s.pollDue(ctx, func(h *Handle, c store.Claim) {
			h.active.Add(1)
			running.Go(func() {
				defer h.active.Done()
				ctx, stop := context.WithCancel(work)
				defer stop()
				defer context.AfterFunc(h.ctx, stop)()
				h.sink.Retry(ctx, c)
			})
		})
	}
}

func (s *Scheduler) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.handles {
		h.sink.Stop()
	}
}

// checkVersion polls all sinks at once if something about a sink has changed. If Redis does not respond, idle polls
// find the change later.
func (s *Scheduler) checkVersion(ctx context.Context) {
	s.mu.Lock()
	none := len(s.handles) == 0
	s.mu.Unlock()
	if none {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	version, err := s.o.States.Version(ctx)
	if err != nil || version == s.version {
		return
	}
	if s.o.OnChange != nil {
		if err := s.o.OnChange(ctx); err != nil {
			s.o.Log.Warn("reading a change failed", "error", err)
			version = "" // again at the next check
		}
	}
	s.version = version
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.handles {
		h.nextStatePoll, h.nextPoll = now, now
		h.sink.OnChange()
	}
}

func (s *Scheduler) nextPoll() time.Time {
	at := time.Now().Add(time.Minute)
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.handles {
		if h.nextPoll.Before(at) {
			at = h.nextPoll
		}
	}
	return at
}

// pollDue polls every sink whose next poll is due, and starts the retries of the claims.
func (s *Scheduler) pollDue(ctx context.Context, start func(*Handle, store.Claim)) {
	handles, requests := s.dueRequests(time.Now())
	for len(requests) > 0 {
		n := min(len(requests), maxSinksPerPoll)
		results := s.pollRedis(ctx, requests[:n])
		for i, h := range handles[:n] {
			h.applyResult(ctx, requests[i].WithState, results[i], start)
			h.active.Done()
		}
		handles, requests = handles[n:], requests[n:]
	}
}

// dueRequests returns the requests of all sinks whose next poll is due, and schedules their idle polls. A Wake during
// the poll can only make the next one sooner.
func (s *Scheduler) dueRequests(now time.Time) (handles []*Handle, requests []store.PollRequest) {
	var due, withState []bool
	s.mu.Lock()
	for h := range s.handles {
		if h.nextPoll.After(now) {
			continue
		}
		h.active.Add(1)
		handles = append(handles, h)
		due, withState = append(due, h.due), append(withState, !h.due || !now.Before(h.nextStatePoll))
		idle := now.Add(idlePollInterval + rand.N(idlePollInterval/5))
		h.nextPoll, h.due = idle.Truncate(pollGranularity).Add(pollGranularity), false
		if withState[len(withState)-1] {
			h.nextStatePoll = h.nextPoll
		}
	}
	s.mu.Unlock()
	requests = make([]store.PollRequest, len(handles))
	for i, h := range handles { // without the lock, so a sink may call Wake
		requests[i] = h.sink.Poll(due[i], withState[i])
	}
	return handles, requests
}

func (s *Scheduler) pollRedis(ctx context.Context, requests []store.PollRequest) []store.PollResult {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return s.o.Retries.Poll(ctx, requests)
}

// Handle is the registration of one sink. It may be used concurrently.
type Handle struct {
	scheduler *Scheduler
	name      string
	sink      Sink            // set by Attach
	active    sync.WaitGroup  // polls and retries; it grows from zero only under the lock of the scheduler
	ctx       context.Context // of the retries
	cancel    context.CancelFunc

	// The lock of the scheduler protects the following fields.
	nextPoll      time.Time
	nextStatePoll time.Time
	due           bool // nextPoll is a due time, not an idle poll
}

// Attach starts polling for the sink.
func (h *Handle) Attach(sink Sink) {
	s := h.scheduler
	s.mu.Lock()
	h.sink = sink
	s.handles[h] = struct{}{}
	s.mu.Unlock()
	s.wakeUp()
}

// Detach stops the sink and polling for it. It returns when all claims are settled. The end of ctx cancels retries that
// are still running. Scheduled deliveries stay scheduled.
func (h *Handle) Detach(ctx context.Context) {
	s := h.scheduler
	s.mu.Lock()
	_, attached := s.handles[h]
	delete(s.handles, h)
	s.mu.Unlock()
	if !attached {
		return
	}
	h.sink.Stop()
	stop := context.AfterFunc(ctx, h.cancel)
	h.active.Wait()
	stop()
	h.cancel()
}

// Cancel cancels the running retries of the sink, which release their claims. No other retry starts.
func (h *Handle) Cancel() {
	h.scheduler.mu.Lock()
	_, attached := h.scheduler.handles[h]
	h.scheduler.mu.Unlock()
	if attached {
		h.sink.Stop()
		h.cancel()
	}
}

// Wake polls the sink after wait, because something is due then. It does not block.
func (h *Handle) Wake(after time.Duration) {
	s, at := h.scheduler, time.Now().Add(after)
	s.mu.Lock()
	sooner := at.Before(h.nextPoll) || !h.due && !at.After(h.nextPoll)
	if sooner {
		h.nextPoll, h.due = at, true
	}
	s.mu.Unlock()
	if sooner {
		s.wakeUp()
	}
}

func (s *Scheduler) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (h *Handle) applyResult(
	ctx context.Context, withState bool, r store.PollResult, start func(*Handle, store.Claim),
) {
	err := h.sink.Apply(ctx, r)
	if err != nil && ctx.Err() == nil {
		h.scheduler.o.Log.Warn("reading scheduled retries failed", "sink", h.name, "error", err)
		if withState { // nothing is claimed before the state is known
			h.scheduler.mu.Lock()
			h.nextStatePoll = time.Time{}
			h.scheduler.mu.Unlock()
		}
		h.Wake(errorRetryInterval)
	}
	if r.Err != nil {
		return // its claims expire
	}
	for _, c := range r.Claims {
		start(h, c)
	}
}
