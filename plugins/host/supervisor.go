package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
)

// State is the state of a plugin.
type State string

// The states of a plugin.
const (
	StateIdle     State = "idle"     // not needed yet
	StateStarting State = "starting" // callers wait for it
	StateRunning  State = "running"
	StateFailed   State = "failed" // it will be restarted
	StateGaveUp   State = "gave_up"
	StateClosed   State = "closed"
)

// Status describes a plugin.
type Status struct {
	State State
	// Reason is why the plugin does not run. It is nil while it runs, and before the first start.
	Reason error
	// Next is the time of the next start after a failure.
	Next time.Time
	// PID is the process ID of a running plugin.
	PID int
}

// restartsSoon reports whether waiting for a crashed plugin is useful, so a crash does not use up an attempt.
func (s Status) restartsSoon(now time.Time) bool {
	var ended *sessionError
	return errors.As(s.Reason, &ended) && s.Next.Sub(now) < time.Second
}

const (
	// reportGiveUp is the time after a plugin was given up in which the first call gets an error instead of starting it again, so its
	// sink is disabled.
	reportGiveUp = 5 * time.Second
	// retryAfterGiveUp is the time in which further calls do not start it, because some begin before the sink is disabled.
	retryAfterGiveUp = time.Second
)

// giveUp is the time at which a plugin was given up. isReported means that a call got a [gaveUpError].
type giveUp struct {
	at         time.Time
	isReported bool
}

// checkCall returns the error of a call that began at a time, or nil if the call must start the plugin again.
func (g *giveUp) checkCall(s Status, began, now time.Time) error {
	if began.Before(g.at) || !g.isReported && now.Sub(g.at) < reportGiveUp {
		g.isReported = true
		return &gaveUpError{s.Reason}
	}
	if s.Next = g.at.Add(retryAfterGiveUp); now.Before(s.Next) {
		return &notRunningError{s}
	}
	return nil
}

var errClosed = errors.New("the plugin was stopped")

// supervisor runs one plugin. It starts the process on demand and restarts it after a crash, until Close.
type supervisor struct {
	o      Options
	kind   pluginKind
	output *pluginOutput
	budget crashBudget

	mu      sync.Mutex
	started bool
	status  Status
	gaveUp  giveUp
	current *pluginSession
	changed chan struct{} // closed and replaced when the state changes
	restart chan struct{} // contains a value if a given-up plugin must be started; at most one
	stop    context.CancelFunc
	done    chan struct{} // closed when everything has ended
}

func newSupervisor(o Options, k pluginKind) (*supervisor, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	return &supervisor{
		o: o, kind: k, output: newOutput(o.Log, o.envSecrets(), o.Observe), budget: crashBudget{maxCrashes: o.MaxCrashes},
		status: Status{State: StateIdle}, changed: make(chan struct{}), restart: make(chan struct{}, 1),
		done: make(chan struct{}),
	}, nil
}

// Start starts the plugin in the background unless it runs. Calls that need the plugin start it too.
func (sv *supervisor) Start() {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if sv.started || sv.status.State == StateClosed {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	sv.started, sv.stop = true, stop
	sv.setLocked(Status{State: StateStarting}, nil)
	go func() {
		defer close(sv.done)
		sv.keepRunning(ctx)
	}()
}

// Resume starts a plugin that has crashed too often. Its status has no reason until it has failed again.
func (sv *supervisor) Resume() {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if sv.status.State != StateGaveUp {
		return
	}
	sv.setLocked(Status{State: StateStarting}, nil)
	sv.restart <- struct{}{} // there is room, because only one request follows each StateGaveUp
}

// Status returns the state of the plugin.
func (sv *supervisor) Status() Status {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	return sv.status
}

// currentSession returns the running plugin. It waits for one that is starting or will restart shortly, and fails at
// once if the plugin could not be started. A [gaveUpError] means that it has crashed too often. Later calls start it again,
// because its sink was resumed.
func (sv *supervisor) currentSession(ctx context.Context) (*pluginSession, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for the plugin: %w", context.Cause(ctx))
	}
	sv.Start()
	began := time.Now()
	for {
		sv.mu.Lock()
		status, current, changed := sv.status, sv.current, sv.changed
		var gaveUp error
		if status.State == StateGaveUp {
			gaveUp = sv.gaveUp.checkCall(status, began, time.Now())
		}
		sv.mu.Unlock()
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
			if gaveUp != nil {
				return nil, gaveUp
			}
			sv.Resume()
		}
		if _, late := await.Value(ctx, changed); late != nil {
			return nil, fmt.Errorf("wait for the plugin to start: %w", late)
		}
	}
}

// notRunningError reports that the plugin is temporarily not running.
type notRunningError struct{ Status }

func (e *notRunningError) Error() string {
	return fmt.Sprintf("the plugin is not running, next start at %s: %v", e.Next.UTC().Format(time.RFC3339), e.Reason)
}

func (e *notRunningError) Unwrap() error { return e.Reason }

// gaveUpError reports that the plugin has crashed too often.
type gaveUpError struct{ error }

func (e *gaveUpError) Unwrap() error { return e.error }

// UnavailableCause returns why the plugin is not running, without the reaction of the daemon. It returns other errors
// unchanged.
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

// Close stops the plugin: it may finish its calls, is requested to end, and is killed after some seconds. It may be
// called twice.
func (sv *supervisor) Close() error {
	sv.mu.Lock()
	started, stop := sv.started, sv.stop
	if !started {
		sv.status = Status{State: StateClosed}
	}
	sv.mu.Unlock()
	if started {
		stop()
		<-sv.done
	}
	return nil
}

func (sv *supervisor) set(s Status, current *pluginSession) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.setLocked(s, current)
}

// setLocked is set for a caller that holds mu.
func (sv *supervisor) setLocked(s Status, current *pluginSession) {
	sv.status, sv.current = s, current
	if s.State == StateGaveUp {
		sv.gaveUp = giveUp{at: time.Now()}
	}
	switch s.State {
	case StateRunning: // the session reports its own
	case StateIdle, StateGaveUp:
		sv.o.reportConcurrency(1) // the next call starts the plugin
	case StateStarting, StateFailed, StateClosed:
		sv.o.reportConcurrency(0)
	}
	close(sv.changed)
	sv.changed = make(chan struct{})
}

// keepRunning keeps the plugin running until ctx ends.
func (sv *supervisor) keepRunning(ctx context.Context) {
	defer sv.set(Status{State: StateClosed}, nil)
	pause := backoff.Backoff{Min: sv.o.Backoff, Max: sv.o.MaxBackoff}
	var workedElsewhereAt time.Time // when it was last known to work on another node
	for {
		took, err := sv.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		var ended *sessionError
		crashed := errors.As(err, &ended)
		switch {
		case crashed && ended.isEarly && sv.worksElsewhere(ctx):
			workedElsewhereAt = time.Now()
		case crashed && !ended.isEarly && !workedElsewhereAt.IsZero():
			sv.budget.score, workedElsewhereAt = 0, time.Time{} // it was repaired on this node
		}
		if took > sv.o.MaxBackoff || crashed && ended.event == EventHung {
			pause.Reset() // it ran for a while
		}
		if crashed {
			sv.o.Observe(ended.event)
		} else {
			sv.o.Observe(EventNotStarted)
		}
		// The events of one tenant can make a plugin hang. Its sink must not be disabled for all of them.
		if crashed && ended.event != EventHung && !sv.budget.recordCrash(time.Now()) &&
			(!ended.isEarly || time.Since(workedElsewhereAt) >= sv.o.ElsewhereGrace) {
			if !sv.waitForRestart(ctx, err) {
				return
			}
			pause.Reset()
			continue
		}
		wait := pause.Next()
		sv.o.Log.Error("plugin is not running and will be started again", "error", err, "retry_in",
			wait.Round(time.Millisecond).String())
		sv.set(Status{State: StateFailed, Reason: err, Next: time.Now().Add(wait)}, nil)
		if !await.Duration(ctx, wait) {
			return
		}
		sv.set(Status{State: StateStarting, Reason: err}, nil)
	}
}

// worksElsewhere reports whether the plugin works on another node, or whether that is not known. Then the sink must not
// be disabled because the plugin does not start on this node.
func (sv *supervisor) worksElsewhere(ctx context.Context) bool {
	if sv.o.WorksElsewhere == nil {
		return false
	}
	works, err := sv.o.WorksElsewhere(ctx)
	return works || err != nil
}

// runOnce starts the plugin, supervises it until it ends, and returns how long it ran.
func (sv *supervisor) runOnce(ctx context.Context) (time.Duration, error) {
	s, err := startSession(ctx, &sv.o, sv.kind, sv.output)
	if err != nil {
		if ctx.Err() == nil { // publish the reason first, because the cleanup takes time
			sv.set(Status{State: StateFailed, Reason: err, Next: time.Now()}, nil)
		}
		s.killProcess()
		return 0, err
	}
	began := time.Now()
	sv.o.Observe(EventStarted)
	sv.set(Status{State: StateRunning, PID: int(s.process.pid.Load())}, s)
	err = s.watchProcess(ctx)
	// New calls must not get a plugin that is ending. Waiting calls get the reason below.
	if err != nil {
		sv.set(Status{State: StateFailed, Reason: err, Next: time.Now()}, nil)
		s.stop(err, false)
	} else {
		sv.set(Status{State: StateClosed}, nil)
		s.stop(errClosed, true)
	}
	return time.Since(began), err
}

// waitForRestart waits until the plugin is needed again. It returns false if ctx ends first.
func (sv *supervisor) waitForRestart(ctx context.Context, err error) bool {
	sv.o.Observe(EventGaveUp)
	remedy, note := sv.kind.crashAdvice()
	err = fmt.Errorf("the plugin crashed too often and is no longer started: %s: %w", remedy, err)
	sv.o.Log.Error("plugin crashed too often", "consequence", note, "error", err)
	sv.set(Status{State: StateGaveUp, Reason: err}, nil)
	select {
	case <-ctx.Done():
		return false
	case <-sv.restart:
	}
	sv.budget.leaveOneCrash(time.Now())
	return true
}

// crashHalfLife is the time after which half of the crashes expire.
const crashHalfLife = 5 * time.Minute

// crashBudget counts crashes that expire over time, so rare crashes are always allowed.
type crashBudget struct {
	maxCrashes int
	score      float64
	at         time.Time
}

func (b *crashBudget) decayScore(now time.Time) {
	if !b.at.IsZero() {
		b.score *= math.Exp2(-now.Sub(b.at).Minutes() / crashHalfLife.Minutes())
	}
	b.at = now
}

// recordCrash counts one crash and reports whether the plugin may be started again.
func (b *crashBudget) recordCrash(now time.Time) bool {
	b.decayScore(now)
	b.score++
	return b.score <= float64(b.maxCrashes)
}

// leaveOneCrash allows one more crash, so an operator can try a fixed plugin and soon sees whether it works.
func (b *crashBudget) leaveOneCrash(now time.Time) { b.score, b.at = float64(b.maxCrashes)-1, now }
