package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// workerTimings are the intervals of a worker. All workers of a Redis use the same, except in tests.
type workerTimings struct {
	// heartbeatTimeout is the time without a heartbeat after which another worker claims a job.
	heartbeatTimeout time.Duration
	// heartbeatInterval is the time between heartbeats, and between checks for changes.
	heartbeatInterval time.Duration
	// slotPollInterval is the time between requests for server slots.
	slotPollInterval time.Duration
	// progressInterval is the time between updates of a running step. The start and the end of a step are stored
	// immediately.
	progressInterval time.Duration
	// minRetryWait and maxRetryWait limit the delay before a driver call with an unknown outcome is repeated.
	minRetryWait, maxRetryWait time.Duration
}

// retryWait returns the delay after the given number of calls with an unknown outcome.
func (w workerTimings) retryWait(calls int) time.Duration {
	return min(w.minRetryWait<<min(calls-1, 10), w.maxRetryWait)
}

func defaultTimings() workerTimings {
	return workerTimings{
		heartbeatTimeout: 5 * time.Second, heartbeatInterval: time.Second, slotPollInterval: 200 * time.Millisecond,
		progressInterval: time.Second,
		minRetryWait:     time.Second, maxRetryWait: 30 * time.Second,
	}
}

const (
	// maxHeldJobs is the maximum number of jobs of a worker that run or wait for server slots.
	maxHeldJobs = 64
	// maxJobsAhead is the maximum number of running or older jobs before a waiting job is requeued. This leaves
	// capacity for jobs with idle servers and for jobs of failed workers.
	maxJobsAhead = maxHeldJobs / 2
	// readBlock is the maximum time that a read waits for new jobs.
	readBlock = time.Second
	// finalWriteTimeout limits the attempts to store the end of a job during shutdown.
	finalWriteTimeout = 5 * time.Second
	// handoverIdleTime is the idle time of a job that is handed over, so it looks abandoned.
	handoverIdleTime = time.Hour
)

// WorkerOptions are the options of a [Worker]. All are required, except Observer and Log.
type WorkerOptions struct {
	Redis     *redisconn.Conn
	Inventory *Inventory
	Driver    relay.Driver
	// Name identifies the worker. It must be unique among the running workers.
	Name string
	// ServerConcurrency is the maximum number of migrations from or to a server, on all nodes together.
	ServerConcurrency int
	// ExpireAfter is the maximum time that a job waits for server slots.
	ExpireAfter time.Duration
	// StallTimeout is the time without progress after which a driver call is stopped and retried.
	StallTimeout time.Duration
	// NewID returns a new notification ID.
	NewID    func() string
	Observer Observer
	Log      *slog.Logger
}

// Observer collects metrics. Its methods are called concurrently and must not block.
type Observer interface {
	// JobEnded is called at the end of each job with the time since the request.
	JobEnded(state relay.JobState, duration time.Duration)
	// JobsHeld is called after each change of the number of jobs that this worker holds.
	JobsHeld(n int)
}

type noopObserver struct{}

func (noopObserver) JobEnded(relay.JobState, time.Duration) {}
func (noopObserver) JobsHeld(int)                           {}

// Worker runs jobs with a driver: new jobs, and jobs whose worker has failed.
type Worker struct {
	o         WorkerOptions
	store     *jobStore
	timings   workerTimings
	heldSlots chan struct{} // one element per job in progress
	maxAhead  int           // maxJobsAhead, except in tests
	jobs      sync.WaitGroup

	mu          sync.Mutex
	held        map[string]bool
	places      map[string]queuePlace // of held jobs that have reached the queue of their servers
	steps       []relay.MigrationStep
	servers     map[string]relay.Server // as configured in the driver
	driverReady chan struct{}           // closed after the first successful Configure
	driverErr   error                   // the reason why the driver cannot work or uses old servers
}

// NewWorker returns a worker. [Worker.Run] starts it.
func NewWorker(o WorkerOptions) *Worker {
	if o.Observer == nil {
		o.Observer = noopObserver{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Worker{
		o: o, store: newJobStore(o.Redis), timings: defaultTimings(), heldSlots: make(chan struct{},
			maxHeldJobs), maxAhead: maxJobsAhead,
		held: make(map[string]bool), places: make(map[string]queuePlace), driverReady: make(chan struct{}),
	}
}

// Run runs jobs until ctx ends. Then it stops the driver at the next point from which another worker can continue,
// hands over all jobs and returns nil. Run must be called only once.
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

// followInventory configures the driver after each change of the inventory.
func (w *Worker) followInventory(ctx context.Context) error {
	configured := int64(-1)
	logged := ""
	for wait := w.timings.heartbeatInterval; ; {
		version, err := w.o.Inventory.Version(ctx)
		if err == nil && version != configured {
			if err = w.configureDriver(ctx); err == nil {
				configured = version
			}
		}
		switch {
		case err == nil:
			wait, logged = w.timings.heartbeatInterval, ""
		case ctx.Err() == nil:
			if err.Error() != logged {
				w.o.Log.Error("migration driver is not ready", "error", err)
				logged = err.Error()
			}
			if wait = min(2*wait, w.timings.maxRetryWait); errors.Is(err, redisconn.ErrUnavailable) {
				wait = w.timings.heartbeatInterval // longer delays are only useful for errors of the driver
			}
		}
		w.mu.Lock()
		w.driverErr = err
		w.mu.Unlock()
		if !await.Duration(ctx, wait) {
			return ctx.Err()
		}
	}
}

// DriverError returns the reason why the driver of this node cannot work or has rejected the current inventory, or
// nil.
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
	description, err := w.o.Driver.Describe(ctx)
	if err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}
	if err := w.o.Driver.Configure(ctx, servers); err != nil {
		return fmt.Errorf("configure the driver: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.steps == nil {
		w.o.Log.Info("migration driver is ready", "driver", description.Name, "version", description.Version,
			"server_count", len(servers))
		close(w.driverReady)
	}
	w.steps = append([]relay.MigrationStep{}, description.Steps...)
	w.servers = make(map[string]relay.Server, len(servers))
	for _, s := range servers {
		w.servers[s.ID] = s
	}
	return nil
}

// readNewJobs reads new jobs and starts them.
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
			list, err = w.store.readNew(ctx, partitions, w.o.Name, readBlock)
		}
		<-w.heldSlots
		for _, queued := range list {
			w.startJob(ctx, queued)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		w.o.Log.Warn("could not read jobs", "error", err)
		if !await.Duration(ctx, w.timings.heartbeatInterval) {
			return ctx.Err()
		}
		err = w.store.createGroup(ctx, partitions)
	}
}

// claimAbandoned claims the jobs of failed workers and starts them.
func (w *Worker) claimAbandoned(ctx context.Context) error {
	for w.waitForDriver(ctx) && await.Duration(ctx, w.timings.heartbeatInterval) {
		// If all slots are in use, claim one job anyway, so it gets a slot before new jobs.
		free := max(1, int64(cap(w.heldSlots)-len(w.heldSlots)))
		list, err := w.store.claimAbandoned(ctx, w.o.Name, w.timings.heartbeatTimeout, free)
		if err != nil && !isGroupMissing(err) && ctx.Err() == nil {
			w.o.Log.Warn("could not claim abandoned jobs", "error", err)
		}
		for _, queued := range list {
			w.startJob(ctx, queued)
		}
	}
	return ctx.Err()
}

// startJob waits for a free slot and then runs a job that is assigned to this worker.
func (w *Worker) startJob(ctx context.Context, queued queuedJob) {
	if !w.markHeld(queued.job) {
		return // the job is already in progress, and its next heartbeat marks it as active
	}
	select {
	case w.heldSlots <- struct{}{}:
	case <-ctx.Done():
		w.unmarkHeld(queued.job)
		return
	}
	w.jobs.Go(func() {
		defer func() {
			<-w.heldSlots
			w.unmarkHeld(queued.job)
		}()
		j, err := w.store.claimJob(ctx, queued.partition, queued.entry, queued.job, w.o.Name)
		if err != nil && ctx.Err() == nil {
			w.o.Log.Warn("could not claim job", "job_id", queued.job, "error", err)
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
	delete(w.places, job)
	w.o.Observer.JobsHeld(len(w.held))
}

// waitForDriver waits until the driver is ready, so other nodes can take the jobs until then. It stops waiting after
// ExpireAfter, because a worker must end expired jobs. It returns false if ctx has ended.
func (w *Worker) waitForDriver(ctx context.Context) bool {
	timeout := time.NewTimer(w.o.ExpireAfter)
	defer timeout.Stop()
	select {
	case <-w.driverReady:
	case <-timeout.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// queuePlace is the place of a job in the queue of its servers.
type queuePlace struct {
	job, account string
	queuedAt     time.Time // zero while the job runs
}

// setPlace sets the place of a held job.
func (w *Worker) setPlace(p queuePlace) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places[p.job] = p
}

// hasTooManyAhead reports whether about maxAhead held jobs precede a job: running jobs, older jobs of the same account, and as
// many jobs of each other account plus one, because accounts take turns (server_slot.lua).
func (w *Worker) hasTooManyAhead(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	running, older, others, own := 0, 0, make(map[string]int), w.places[job]
	for _, p := range w.places {
		switch {
		case p.queuedAt.IsZero():
			running++
		case p.account != own.account:
			others[p.account]++
		case cmp.Or(p.queuedAt.Compare(own.queuedAt), cmp.Compare(p.job, job)) < 0:
			older++
		}
	}
	ahead := running + older
	for _, n := range others {
		ahead += min(n, older+1)
	}
	return ahead >= w.maxAhead
}

// driverSteps waits until the driver is ready and returns its steps.
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

// serverSettings returns the settings of a server in the driver's configuration, or nil if the configuration does not
// contain the server.
func (w *Worker) serverSettings(server string) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[server].Settings
}
