package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// State says what a plugin does.
type State string

// The states of a plugin.
const (
	StateIdle     State = "idle"     // nobody has needed it yet
	StateStarting State = "starting" // whoever needs it waits
	StateRunning  State = "running"
	StateFailed   State = "failed" // it is started again after a while
	StateGaveUp   State = "gave_up"
	StateClosed   State = "closed"
)

// Status is what is known of a plugin.
type Status struct {
	State State
	// Reason is why it does not run, nil where it does and where nothing is known yet.
	Reason error
	// Next is when it is started again, where it has failed.
	Next time.Time
	// PID is the process id of a running plugin.
	PID int
}

// restartsSoon tells whether it is worth waiting for a plugin that has crashed: an attempt is not to be used up by every crash.
func (s Status) restartsSoon(now time.Time) bool {
	var ended *sessionError
	return errors.As(s.Reason, &ended) && s.Next.Sub(now) < time.Second
}

// retryAfterGiveUp is how long a plugin that was given up is left alone before somebody may start it again: what was
// on its way must not.
const retryAfterGiveUp = 5 * time.Second

var errClosed = errors.New("the plugin was ended")

// supervisor runs one plugin of some kind: it starts the process when it is wanted, and again whenever it has died, until
// Close.
type supervisor struct {
	o      Options
	kind   pluginKind
	output *pluginOutput
	budget crashBudget

	mu      sync.Mutex
	started bool
	status  Status
	gaveUp  time.Time
	current *pluginSession
	changed chan struct{} // closed and replaced when the state changes
	restart chan struct{} // holds one when a plugin that was given up shall be started
	stop    context.CancelFunc
	done    chan struct{} // closed when nothing runs any more
}

func newSupervisor(o Options, k pluginKind) (*supervisor, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	return &supervisor{
		o: o, kind: k, output: newOutput(o.Log, o.Observe), budget: crashBudget{maxCrashes: o.MaxCrashes},
		status: Status{State: StateIdle}, changed: make(chan struct{}), restart: make(chan struct{}, 1), done: make(chan struct{}),
	}, nil
}

// Start starts the plugin in the background, if it was not. So does whatever needs it.
func (h *supervisor) Start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.started || h.status.State == StateClosed {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	h.started, h.stop = true, stop
	h.status = Status{State: StateStarting}
	go func() {
		defer close(h.done)
		h.supervise(ctx)
	}()
}

// Status tells what the plugin does.
func (h *supervisor) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// currentSession returns the plugin that runs. It waits for one that is being started, or again in a moment, and fails at once
// where it could not be started; a [gaveUpError] says that it has crashed too often.
func (h *supervisor) currentSession(ctx context.Context) (*pluginSession, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("wait for the plugin: %w", err)
	}
	h.Start()
	for {
		h.mu.Lock()
		status, current, changed, gaveUp := h.status, h.current, h.changed, h.gaveUp
		h.mu.Unlock()
		switch status.State {
		case StateRunning:
			return current, nil
		case StateClosed:
			return nil, errClosed
		case StateFailed:
			if status.restartsSoon(time.Now()) {
				break
			}
			return nil, &notRunningError{status}
		case StateGaveUp:
			if time.Since(gaveUp) < retryAfterGiveUp {
				return nil, &gaveUpError{status.Reason}
			}
			select {
			case h.restart <- struct{}{}:
			default:
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the plugin to start: %w", ctx.Err())
		}
	}
}

// notRunningError says that the plugin does not run for now.
type notRunningError struct{ Status }

func (e *notRunningError) Error() string {
	return fmt.Sprintf("the plugin does not run, next start %s: %v", e.Next.UTC().Format(time.TimeOnly), e.Reason)
}

func (e *notRunningError) Unwrap() error { return e.Reason }

// gaveUpError says that the plugin has crashed too often.
type gaveUpError struct{ error }

func (e *gaveUpError) Unwrap() error { return e.error }

// UnavailableCause returns why the plugin does not run, without what a daemon does about it; any other error as it is.
func UnavailableCause(err error) error {
	var away *notRunningError
	var gaveUp *gaveUpError
	switch {
	case errors.As(err, &away):
		return away.Reason
	case errors.As(err, &gaveUp):
		return errors.Unwrap(gaveUp.error)
	}
	return err
}

// Close ends the plugin: it may answer what it has, is asked to end, and is killed after some seconds. It may be called
// twice.
func (h *supervisor) Close() error {
	h.mu.Lock()
	started, stop := h.started, h.stop
	if !started {
		h.status = Status{State: StateClosed}
	}
	h.mu.Unlock()
	if started {
		stop()
		<-h.done
	}
	return nil
}

func (h *supervisor) set(s Status, current *pluginSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status, h.current = s, current
	if s.State == StateGaveUp {
		h.gaveUp = time.Now()
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// supervise keeps the plugin running until ctx ends.
func (h *supervisor) supervise(ctx context.Context) {
	defer h.set(Status{State: StateClosed}, nil)
	failures := 0
	for {
		took, err := h.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if took > h.o.MaxBackoff {
			failures = 0 // it ran for a while
		}
		failures++
		var ended *sessionError
		crashed := errors.As(err, &ended)
		if crashed {
			h.o.Observe(ended.event)
		} else {
			h.o.Observe(EventNotStarted)
		}
		if crashed && !h.budget.recordCrash(time.Now()) {
			if !h.waitForRestart(ctx, err) {
				return
			}
			failures = 0
			continue
		}
		wait := jitter(backoff(failures, h.o.Backoff, h.o.MaxBackoff))
		h.o.Log.Error("the plugin does not run; it is started again", "error", err, "in", wait.Round(time.Millisecond).String())
		h.set(Status{State: StateFailed, Reason: err, Next: time.Now().Add(wait)}, nil)
		if !relay.Sleep(ctx, wait) {
			return
		}
		h.set(Status{State: StateStarting, Reason: err}, nil)
	}
}

// runOnce starts the plugin and watches over it until it ends, and tells how long it ran.
func (h *supervisor) runOnce(ctx context.Context) (time.Duration, error) {
	s, err := startSession(ctx, &h.o, h.kind, h.output)
	if err != nil {
		if ctx.Err() == nil { // whoever asks learns it now: to clear up takes a while
			h.set(Status{State: StateFailed, Reason: err, Next: time.Now()}, nil)
		}
		s.kill()
		return 0, err
	}
	began := time.Now()
	h.o.Observe(EventStarted)
	h.set(Status{State: StateRunning, PID: int(s.process.pid.Load())}, s)
	err = s.watch(ctx)
	// Nobody may be handed a plugin that ends; those who wait for its answer get the reason below.
	if err != nil {
		h.set(Status{State: StateFailed, Reason: err, Next: time.Now()}, nil)
		s.stop(err, false)
	} else {
		h.set(Status{State: StateClosed}, nil)
		s.stop(errClosed, true)
	}
	return time.Since(began), err
}

// waitForRestart waits until somebody wants the plugin again, false where ctx ends before.
func (h *supervisor) waitForRestart(ctx context.Context, err error) bool {
	h.o.Observe(EventGaveUp)
	remedy, note := h.kind.crashAdvice()
	err = fmt.Errorf("the plugin crashed too often and is not started any more: %s: %w", remedy, err)
	h.o.Log.Error("the plugin crashed too often", "consequence", note, "error", err)
	select {
	case <-h.restart: // of an earlier time
	default:
	}
	h.set(Status{State: StateGaveUp, Reason: err}, nil)
	select {
	case <-ctx.Done():
		return false
	case <-h.restart:
	}
	h.budget.leaveOneCrash(time.Now())
	h.set(Status{State: StateStarting, Reason: err}, nil)
	return true
}
