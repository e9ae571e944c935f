package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// mostFailures is how often a driver may leave a migration unsettled before it is asked to undo it.
	mostFailures = 3
	// maxError bounds what a driver says of a failure, in bytes.
	maxError = 1 << 10
)

var (
	errHoldLost  = errors.New("redis did not answer for so long that another worker may have taken the job over")
	errOvertaken = errors.New("the driver has seen a higher lease")
	errPutOff    = errors.New("others come first")
	errNoServer  = errors.New("the inventory file of this node does not define both servers of the migration; put them back until it is over")
	errNowhere   = errors.New("the driver gets nowhere here, perhaps it does on another node")
)

// hand is a job that this worker holds.
type hand struct {
	w     *Worker
	j     *job
	log   *slog.Logger
	marks int
	// running is set once the job has its servers' turn.
	running atomic.Bool
}

func newHand(w *Worker, j *job) *hand {
	return &hand{w: w, j: j, log: w.o.Log.With("job", j.ID, "instance", j.Instance)}
}

// work brings the job to an end, or as far as possible until ctx ends or another worker has it.
func (h *hand) work(ctx context.Context) {
	working, cancel := context.WithCancelCause(ctx)
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		h.beat(working, cancel)
	}()
	err := h.run(working)
	cancel(nil)
	<-beating
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer stop()
	switch {
	case err == nil:
		h.w.o.Observer.JobEnded(h.j.State, time.Since(h.j.queuedHere))
		h.log.Info("a migration is over", "state", string(h.j.State), "error", h.j.Error, "from", h.j.Source, "to", h.j.Destination)
	case errors.Is(err, errVanished):
		h.bringBack(ctx)
	case errors.Is(err, errSuperseded):
		h.log.Warn("another worker has taken a migration over")
		return // its turn is the other's now
	case errors.Is(err, errOvertaken):
		// Left alone it is taken up again in a while, with a higher lease.
		h.log.Warn("a migration is left to another worker", "error", err)
	case errors.Is(err, errPutOff):
	case errors.Is(err, errNoServer):
		h.log.Error("migration waits for another node", "source", h.j.Source, "destination", h.j.Destination, "reason", err)
		h.handOver(last)
	default:
		h.log.Info("a migration is handed over", "reason", err)
		h.handOver(last)
	}
	if err := h.w.store.yield(last, h.j.ID); err != nil {
		h.log.Warn("cannot give up a turn, it will expire", "error", err)
	}
}

// handOver lets another worker take the job at once.
func (h *hand) handOver(ctx context.Context) {
	if err := h.w.store.beat(ctx, h.j, h.w.o.Name, forgotten); err != nil && !errors.Is(err, errSuperseded) {
		h.log.Warn("cannot hand a migration over; another worker takes it in a while", "error", err)
	}
}

// bringBack brings the instance back where Redis has lost the job in the middle: nobody else knows of it, and its instance may
// be stopped. Where the job's successor is at work already, the driver refuses.
func (h *hand) bringBack(ctx context.Context) {
	if !h.running.Load() {
		h.log.Error("Redis has lost a migration that had not begun; ask for it again")
		return
	}
	h.log.Error("Redis has lost a migration in the middle; its instance is brought back", "to", h.j.Source)
	m := h.j.migration()
	m.Undo = true
	for n := 1; ; n++ {
		err := h.w.o.Driver.Migrate(ctx, m, func(relay.Progress) {})
		switch {
		case err == nil:
			h.log.Error("an instance was too far to be brought back: correct the inventory", "is_on", h.j.Destination)
			return
		case !relay.IsUnsettled(err):
			h.log.Warn("a migration that Redis has lost is left", "outcome", err)
			return
		}
		h.log.Error("the driver could not bring an instance back; it is called again", "error", err)
		if !relay.Pause(ctx, h.w.pace.again(n)) {
			return
		}
	}
}

// beat shows that the job is in hand, and ends the work when it may be in another's.
func (h *hand) beat(ctx context.Context, cancel context.CancelCauseFunc) {
	last := time.Now()
	for relay.Pause(ctx, h.w.pace.beat) {
		began := time.Now()
		err := h.w.store.beat(ctx, h.j, h.w.o.Name, 0)
		if err == nil {
			last = began
			if h.running.Load() {
				_, err = h.turn(ctx)
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errSuperseded):
			cancel(err)
			return
		case time.Since(last) > h.w.pace.hold:
			cancel(errHoldLost)
			return
		}
	}
}

func (h *hand) turn(ctx context.Context) (bool, error) {
	return h.w.store.turn(ctx, h.j, h.w.o.ServerConcurrency, h.w.pace.hold)
}

// run returns nil when the job is over.
func (h *hand) run(ctx context.Context) error {
	if h.j.damaged {
		return h.spoiled(ctx)
	}
	if h.j.State == relay.JobQueued {
		e := h.events().job(topicJobChanged, relay.JobScheduled, "", h.j.Source)
		if err := h.to(ctx, relay.JobScheduled, e, update{}); err != nil {
			return err
		}
	}
	if err := h.awaitTurn(ctx); err != nil || h.j.State.Over() {
		return err
	}
	return h.migrate(ctx)
}

// spoiled ends a job of which nobody knows any more what it was to do.
func (h *hand) spoiled(ctx context.Context) error {
	text, err := h.j.encode()
	if err != nil {
		return err
	}
	if err := h.apply(ctx, update{fields: []string{"order", text}}); err != nil {
		return err
	}
	return h.end(ctx, relay.JobError, "the record of the job in Redis was damaged; look where the instance is, and ask again", "", h.events())
}

// awaitTurn returns when the job may run, and does; or it has expired.
func (h *hand) awaitTurn(ctx context.Context) error {
	h.w.queue(h.j.ID, h.j.Queued)
	for began := time.Now(); ; {
		if h.j.State == relay.JobScheduled && time.Since(h.j.queuedHere) > h.w.o.ExpireAfter {
			cause := fmt.Sprintf("the servers did not have time for the migration within %s; nothing was touched, ask again", h.w.o.ExpireAfter)
			return h.end(ctx, relay.JobExpired, cause, "", h.events())
		}
		short, stop := context.WithTimeout(ctx, h.w.pace.turn)
		steps, err := h.w.driver(short)
		stop()
		if err == nil && !h.useServers() {
			if err = errNoServer; time.Since(began) > h.w.pace.hold {
				return err
			}
		}
		if err == nil {
			mine, err := h.turn(ctx)
			switch {
			case err == nil && mine:
				h.w.queue(h.j.ID, time.Time{})
				h.running.Store(true)
				return h.start(ctx, steps)
			case err == nil && h.j.State == relay.JobScheduled && time.Since(began) > h.w.pace.beat && h.w.tooMany(h.j.ID):
				err = h.w.store.putOff(ctx, h.j)
				if err == nil || errors.Is(err, errSuperseded) {
					return cmp.Or(err, errPutOff)
				}
			}
		}
		if !relay.Pause(ctx, h.w.pace.turn) {
			return context.Cause(ctx)
		}
	}
}

// useServers takes the settings of the job's servers from this node's inventory file, and reports whether it has both. They
// stay what they are until the end of this node's work on the job.
func (h *hand) useServers() bool {
	h.j.sourceSettings, h.j.destinationSettings = h.w.settings(h.j.Source), h.w.settings(h.j.Destination)
	return h.j.sourceSettings != nil && h.j.destinationSettings != nil
}

// start tells that the job runs, unless it did so before.
func (h *hand) start(ctx context.Context, steps []relay.MigrationStep) error {
	if h.j.State == relay.JobRunning {
		return nil
	}
	text, err := json.Marshal(steps)
	if err != nil {
		return fmt.Errorf("encode the driver's steps: %w", err)
	}
	e := h.events().job(topicJobChanged, relay.JobRunning, "", h.j.Source).
		instance(topicInstance, instanceMigrating, "", h.j.Source)
	h.j.Steps = steps
	return h.to(ctx, relay.JobRunning, e, update{fields: []string{"steps", string(text), "started", "@now"}})
}

// migrate calls the driver until the migration is settled.
func (h *hand) migrate(ctx context.Context) error {
	for {
		err := h.attempt(ctx)
		switch {
		case err == nil:
			e := h.events().instance(topicInstance, instanceRunning, "", h.j.Destination)
			return h.end(ctx, relay.JobCompleted, "", h.j.Destination, e)
		case errors.Is(err, errSuperseded):
			return err
		case errors.Is(context.Cause(ctx), errSuperseded):
			return context.Cause(ctx)
		case errors.Is(err, relay.ErrSuperseded):
			return errOvertaken
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !relay.IsUnsettled(err):
			return h.fail(ctx, err)
		}
		if err := h.unsettled(ctx, err); err != nil {
			return err
		}
		if !relay.Pause(ctx, h.w.pace.again(h.j.attempts)) {
			return context.Cause(ctx)
		}
		if h.j.attempts > mostFailures {
			return errNowhere
		}
	}
}

// unsettled notes that the driver could neither go on nor back. After a few times it shall go back.
func (h *hand) unsettled(ctx context.Context, err error) error {
	h.j.attempts++
	h.log.Error("the driver left a migration unsettled; it is called again", "error", err, "attempt", h.j.attempts, "undo", h.j.undo)
	if !h.j.undo { // why it is undone is of more use than why that did not succeed at first
		h.j.Error = sentence(err)
	}
	fields := []string{"attempts", strconv.Itoa(h.j.attempts), "error", h.j.Error}
	if h.j.attempts >= mostFailures {
		h.j.undo = true
		fields = append(fields, "undo", "1")
	}
	return h.apply(ctx, update{fields: fields})
}

func (h *hand) fail(ctx context.Context, err error) error {
	cause := sentence(err)
	if h.j.undo && h.j.Error != "" {
		cause = relay.Clip(h.j.Error, maxError/2) + "; the instance is back on " + h.j.Source
	}
	e := h.events().instance(topicInstanceFail, instanceRunning, cause, h.j.Source).
		instance(topicInstance, instanceRunning, "", h.j.Source)
	return h.end(ctx, relay.JobError, cause, "", e)
}

// end stores that the job is over. It tries so for a while even where ctx has ended: what the driver has done is done.
func (h *hand) end(ctx context.Context, state relay.JobState, cause, movedTo string, e *events) error {
	e.job(topicJobChanged, state, cause, cmp.Or(movedTo, h.j.Source))
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errSuperseded) {
		return context.Cause(ctx)
	}
	ending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settleTime, stop) })()
	h.j.Error = cause
	return h.to(ending, state, e, update{fields: []string{"error", cause, "completed", "@now"}, over: true, movedTo: movedTo})
}

// to brings the job into another state, together with its events.
func (h *hand) to(ctx context.Context, state relay.JobState, e *events, u update) error {
	if e.err != nil {
		return e.err
	}
	u.fields = append(u.fields, "state", string(state), "changed", "@now")
	u.events = e.list
	if err := h.apply(ctx, u); err != nil {
		return err
	}
	h.j.State = state
	return nil
}

// apply makes a change, however long Redis is away, until ctx ends.
func (h *hand) apply(ctx context.Context, u update) error {
	h.marks++
	mark := fmt.Sprintf("%d.%d", h.j.lease, h.marks)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := h.w.store.apply(ctx, h.j, mark, u)
		if err == nil || errors.Is(err, errSuperseded) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h.log.Warn("cannot store a change of a job, will try again", "error", err)
		if !relay.Pause(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

func (h *hand) events() *events { return &events{of: &h.j.order, newID: h.w.o.NewID} }

// sentence is what people read of an error.
func sentence(err error) string {
	return relay.Clip(strings.ToValidUTF8(strings.TrimSpace(err.Error()), "�"), maxError)
}
