package migration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/backbone"
)

// workerTimings is how fast a worker is. All workers of a Redis have the same, but in tests.
type workerTimings struct {
	// heartbeatTimeout is how long a worker may show no life before another takes its jobs over.
	heartbeatTimeout time.Duration
	// heartbeatInterval is how often it shows some, and looks after what has changed.
	heartbeatInterval time.Duration
	// slotPollInterval is how often a job asks for its turn.
	slotPollInterval time.Duration
	// progressInterval is how often it is told how far a step is; its begin and its end are told at once.
	progressInterval time.Duration
	// The waits between calls of a driver that left a migration unsettled.
	minRetryWait, maxRetryWait time.Duration
}

// retryWait is how long to wait after so many calls that left it unsettled.
func (p workerTimings) retryWait(calls int) time.Duration {
	return min(p.minRetryWait<<min(calls-1, 10), p.maxRetryWait)
}

func defaultTimings() workerTimings {
	return workerTimings{
		heartbeatTimeout: 5 * time.Second, heartbeatInterval: time.Second, slotPollInterval: 200 * time.Millisecond, progressInterval: time.Second,
		minRetryWait: time.Second, maxRetryWait: 30 * time.Second,
	}
}

const (
	// maxHeldJobs bounds the jobs of a worker that run or wait for their servers' turn.
	maxHeldJobs = 64
	// maxJobsAhead bounds how many of them run or are older than one that waits: any more, and it is put off, so that there is room
	// for those whose servers are idle, and for those of workers that have died.
	maxJobsAhead = maxHeldJobs / 2
	// readBlock is how long a read for new jobs waits.
	readBlock = time.Second
	// finalWriteTimeout bounds how long the end of a job is tried to be stored once the worker shall end.
	finalWriteTimeout = 5 * time.Second
	// handoverIdleTime is for how long a job that is handed over shall seem to have been left alone.
	handoverIdleTime = time.Hour
)

// WorkerOptions describe a [Worker]. All but Observer and Log are required.
type WorkerOptions struct {
	Backbone  *backbone.Store
	Inventory *Inventory
	Driver    relay.Driver
	// Name is the worker's, unique among all that live.
	Name string
	// ServerConcurrency is how many migrations may run at once from or to a server, over all nodes.
	ServerConcurrency int
	// ExpireAfter is how long a job may wait for its turn.
	ExpireAfter time.Duration
	// StallTimeout is how long a driver may report nothing new of a migration before it is stopped and called again.
	StallTimeout time.Duration
	// NewID returns an id as every notification has one.
	NewID    func() string
	Observer Observer
	Log      *slog.Logger
}

// Observer counts. Its methods are called concurrently and must not block.
type Observer interface {
	// JobEnded is called for each job that is over, with how long it took since it was asked for.
	JobEnded(state relay.JobState, took time.Duration)
	// JobsHeld tells how many jobs this worker has.
	JobsHeld(n int)
}

type noObserver struct{}

func (noObserver) JobEnded(relay.JobState, time.Duration) {}
func (noObserver) JobsHeld(int)                           {}

// Worker has jobs done by a driver: those that are new, and those whose worker has died.
type Worker struct {
	o         WorkerOptions
	store     *jobStore
	timings   workerTimings
	heldSlots chan struct{} // holds one for each job in hand
	maxAhead  int           // mostAhead, but in tests
	jobs      sync.WaitGroup

	mu          sync.Mutex
	held        map[string]bool
	queuedAt    map[string]time.Time // when those in hand were queued, zero for those that run
	steps       []relay.MigrationStep
	servers     map[string]relay.Server // as the driver knows them
	driverReady chan struct{}           // closed when the driver knows the servers
	driverErr   error                   // why the driver cannot work, or knows only servers of before
}

// NewWorker returns a worker, which does nothing before Run.
func NewWorker(o WorkerOptions) *Worker {
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Worker{
		o: o, store: newJobStore(o.Backbone), timings: defaultTimings(), heldSlots: make(chan struct{}, maxHeldJobs), maxAhead: maxJobsAhead,
		held: make(map[string]bool), queuedAt: make(map[string]time.Time), driverReady: make(chan struct{}),
	}
}

// Run works until ctx ends; then it stops the driver at the next point from which another worker goes on, hands all jobs
// over, and returns nil. It can be called once.
func (w *Worker) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.followInventory(ctx) })
	group.Go(func() error { return w.claimAbandoned(ctx) })
	for _, partitions := range w.store.partitionsBySlot() {
		group.Go(func() error { return w.readNewJobs(ctx, partitions) })
	}
	err := group.Wait()
	w.jobs.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// followInventory tells the driver which servers there are.
func (w *Worker) followInventory(ctx context.Context) error {
	told := int64(-1)
	complained := ""
	for wait := w.timings.heartbeatInterval; ; {
		version, err := w.o.Inventory.Version(ctx)
		if err == nil && version != told {
			if err = w.configureDriver(ctx); err == nil {
				told = version
			}
		}
		switch {
		case err == nil:
			wait, complained = w.timings.heartbeatInterval, ""
		case ctx.Err() == nil:
			if err.Error() != complained {
				w.o.Log.Error("the driver of migrations cannot work; jobs wait until it can", "error", err)
				complained = err.Error()
			}
			if wait = min(2*wait, w.timings.maxRetryWait); errors.Is(err, backbone.ErrUnavailable) {
				wait = w.timings.heartbeatInterval // only what the driver says is worth patience
			}
		}
		w.mu.Lock()
		w.driverErr = err
		w.mu.Unlock()
		if !relay.Sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// DriverError is why the driver of this node cannot work, or has refused the present inventory; nil where all is well, as far
// as is known.
func (w *Worker) DriverError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.driverErr
}

func (w *Worker) configureDriver(ctx context.Context) error {
	servers, err := w.o.Inventory.Servers(ctx)
	if err != nil {
		return err
	}
	about, err := w.o.Driver.Describe(ctx)
	if err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}
	if err := w.o.Driver.Configure(ctx, servers); err != nil {
		return fmt.Errorf("configure the driver: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.steps == nil {
		w.o.Log.Info("migrations are possible", "driver", about.Name, "version", about.Version, "servers", len(servers))
		close(w.driverReady)
	}
	w.steps = append([]relay.MigrationStep{}, about.Steps...)
	w.servers = make(map[string]relay.Server, len(servers))
	for _, s := range servers {
		w.servers[s.ID] = s
	}
	return nil
}

// readNewJobs takes new jobs.
func (w *Worker) readNewJobs(ctx context.Context, partitions []int) error {
	if !w.waitForDriver(ctx) {
		return ctx.Err()
	}
	err := w.store.createGroup(ctx, partitions)
	for {
		var list []queuedJob
		select {
		case w.heldSlots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err == nil {
			list, err = w.store.read(ctx, partitions, w.o.Name, readBlock)
		}
		<-w.heldSlots
		for _, one := range list {
			w.startJob(ctx, one)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		w.o.Log.Warn("cannot read the jobs, will go on", "error", err)
		if !relay.Sleep(ctx, w.timings.heartbeatInterval) {
			return ctx.Err()
		}
		err = w.store.createGroup(ctx, partitions)
	}
}

// claimAbandoned takes the jobs of workers that have died.
func (w *Worker) claimAbandoned(ctx context.Context) error {
	for w.waitForDriver(ctx) && relay.Sleep(ctx, w.timings.heartbeatInterval) {
		// Where there is no room, one waits for it in front of the new jobs.
		free := max(1, int64(cap(w.heldSlots)-len(w.heldSlots)))
		list, err := w.store.claimAbandoned(ctx, w.o.Name, w.timings.heartbeatTimeout, free)
		if err != nil && !groupMissing(err) && ctx.Err() == nil {
			w.o.Log.Warn("cannot look for abandoned jobs", "error", err)
		}
		for _, one := range list {
			w.startJob(ctx, one)
		}
	}
	return ctx.Err()
}

// startJob works on a job that was handed to this worker, once there is room.
func (w *Worker) startJob(ctx context.Context, one queuedJob) {
	if !w.markHeld(one.job) {
		return // it is in hand, and its next beat says so
	}
	select {
	case w.heldSlots <- struct{}{}:
	case <-ctx.Done():
		w.unmarkHeld(one.job)
		return
	}
	w.jobs.Go(func() {
		defer func() {
			<-w.heldSlots
			w.unmarkHeld(one.job)
		}()
		j, err := w.store.claimJob(ctx, one.partition, one.entry, one.job, w.o.Name)
		if err != nil && ctx.Err() == nil {
			w.o.Log.Warn("cannot take up a job, will try again", "job", one.job, "error", err)
		}
		if err == nil && j != nil {
			newJobRunner(w, j).runJob(ctx)
		}
	})
}

func (w *Worker) markHeld(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[job] {
		return false
	}
	w.held[job] = true
	w.o.Observer.JobsHeld(len(w.held))
	return true
}

func (w *Worker) unmarkHeld(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, job)
	delete(w.queuedAt, job)
	w.o.Observer.JobsHeld(len(w.held))
}

// waitForDriver waits until the driver can work: until then other nodes shall have the jobs. After as long as a job may wait it gives
// that up, since somebody has to tell that jobs have expired.
func (w *Worker) waitForDriver(ctx context.Context) bool {
	late := time.NewTimer(w.o.ExpireAfter)
	defer late.Stop()
	select {
	case <-w.driverReady:
	case <-late.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// setQueuedAt puts a job into the line of those in hand, with the time when it was queued, or none if it runs.
func (w *Worker) setQueuedAt(job string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queuedAt[job] = at
}

// hasTooManyAhead reports whether maxAhead held jobs precede a job. As in server_slot.lua, the older job comes first, and of two
// from the same millisecond the one with the lower ID.
func (w *Worker) hasTooManyAhead(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ahead, queuedAt := 0, w.queuedAt[job]
	for other, at := range w.queuedAt {
		if at.Before(queuedAt) || at.Equal(queuedAt) && other < job {
			ahead++
		}
	}
	return ahead >= w.maxAhead
}

// driverSteps returns the driver's steps once it can work.
func (w *Worker) driverSteps(ctx context.Context) ([]relay.MigrationStep, error) {
	select {
	case <-w.driverReady:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.steps, nil
}

// serverSettings returns the settings of a server with which the driver was configured, nil if it does not know the server.
func (w *Worker) serverSettings(server string) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[server].Settings
}
