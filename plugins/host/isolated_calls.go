package host

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

// maxSuspects is the maximum number of suspects. At the maximum, the set is cleared, so each may end the common process once more.
const maxSuspects = 10_000

// isolatedCalls runs migrations in separate processes if the common process ended during them. One of them may be the cause, and
// must not end the others again.
type isolatedCalls struct {
	mu       sync.Mutex
	closed   bool
	suspects map[string]struct{} // IDs of the jobs during which the common process ended
	drivers  map[*Driver]struct{}
}

func newIsolatedCalls() *isolatedCalls {
	return &isolatedCalls{suspects: make(map[string]struct{}), drivers: make(map[*Driver]struct{})}
}

func (c *isolatedCalls) isSuspect(jobID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.suspects[jobID]
	return ok
}

func (c *isolatedCalls) addSuspect(jobID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.suspects) >= maxSuspects {
		clear(c.suspects)
	}
	c.suspects[jobID] = struct{}{}
}

func (c *isolatedCalls) removeSuspect(jobID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.suspects, jobID)
}

// addDriver returns false after close.
func (c *isolatedCalls) addDriver(d *Driver) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.drivers[d] = struct{}{}
	return true
}

func (c *isolatedCalls) removeDriver(d *Driver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.drivers, d)
}

// close stops all processes at the same time, and prevents new ones.
func (c *isolatedCalls) close() {
	c.mu.Lock()
	c.closed = true
	drivers := c.drivers
	c.drivers = nil
	c.mu.Unlock()
	var closing sync.WaitGroup
	for d := range drivers {
		closing.Go(func() { _ = d.Close() })
	}
	closing.Wait()
}

// migrateAlone makes a call in a separate process.
func (d *Driver) migrateAlone(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	o := d.o
	o.Log = o.Log.With("job_id", m.JobID)
	own, err := newDriver(o, d.inventory)
	if err != nil {
		return relay.Indeterminate(err)
	}
	if !d.isolated.addDriver(own) {
		return relay.Indeterminate(relay.Postpone(errClosed, 0))
	}
	defer d.isolated.removeDriver(own)
	defer own.Close()
	o.Log.Info("migration runs in a separate process, because the common one has ended")
	if err = own.migrateShared(ctx, m, report); !relay.IsIndeterminate(err) && ctx.Err() == nil {
		d.isolated.removeSuspect(m.JobID)
	}
	return err
}

// endedError is the reason why the process ended during a call.
type endedError struct{ error }

func (e *endedError) Unwrap() error { return e.error }

// hasEnded reports whether the process ended during a call, although the driver was not closed.
func hasEnded(err error) bool {
	var ended *endedError
	return errors.As(err, &ended) && !errors.Is(err, errClosed)
}

// doneSteps are the last reports of the steps of a migration.
type doneSteps []relay.Progress

// add replaces the report of a step. A completed step stays completed.
func (s *doneSteps) add(p relay.Progress) {
	i := slices.IndexFunc(*s, func(old relay.Progress) bool { return old.Step == p.Step })
	if i < 0 {
		*s = append(*s, p)
		return
	}
	p.Completed = p.Completed || (*s)[i].Completed
	(*s)[i] = p
}
