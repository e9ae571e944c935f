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
	"github.com/hubrelay/hubrelay/relay/backbone"
)

// pace is how fast a worker is. All workers of a Redis have the same, but in tests.
type pace struct {
	// hold is how long a worker may show no life before another takes its jobs over.
	hold time.Duration
	// beat is how often it shows some, and looks after what has changed.
	beat time.Duration
	// turn is how often a job asks for its turn.
	turn time.Duration
	// tell is how often it is told how far a step is; its begin and its end are told at once.
	tell time.Duration
	// The waits between calls of a driver that left a migration unsettled.
	againMin, againMax time.Duration
}

// again is how long to wait after so many calls that left it unsettled.
func (p pace) again(calls int) time.Duration { return min(p.againMin<<min(calls-1, 10), p.againMax) }

func usualPace() pace {
	return pace{
		hold: 5 * time.Second, beat: time.Second, turn: 200 * time.Millisecond, tell: time.Second,
		againMin: time.Second, againMax: 30 * time.Second,
	}
}

const (
	// mostInHand bounds the jobs of a worker that run or wait for their servers' turn.
	mostInHand = 64
	// mostAhead bounds how many of them run or are older than one that waits: any more, and it is put off, so that there is room
	// for those whose servers are idle, and for those of workers that have died.
	mostAhead = mostInHand / 2
	// readBlock is how long a read for new jobs waits.
	readBlock = time.Second
	// settleTime bounds how long the end of a job is tried to be stored once the worker shall end.
	settleTime = 5 * time.Second
	// forgotten is for how long a job that is handed over shall seem to have been left alone.
	forgotten = time.Hour
)

// WorkerOptions describe a [Worker]. All but Observer and Log are required.
type WorkerOptions struct {
	Backbone  *backbone.Backbone
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
	// JobsInHand tells how many jobs this worker has.
	JobsInHand(n int)
}

type noObserver struct{}

func (noObserver) JobEnded(relay.JobState, time.Duration) {}
func (noObserver) JobsInHand(int)                         {}

// Worker has jobs done by a driver: those that are new, and those whose worker has died.
type Worker struct {
	o     WorkerOptions
	store *store
	pace  pace
	room  chan struct{} // holds one for each job in hand
	ahead int           // mostAhead, but in tests
	jobs  sync.WaitGroup

	mu      sync.Mutex
	inHand  map[string]bool
	line    map[string]time.Time // when those in hand were queued, zero for those that run
	steps   []relay.MigrationStep
	servers map[string]relay.Server // as the driver knows them
	driving chan struct{}           // closed when the driver knows the servers
	ailment error                   // why the driver cannot work, or knows only servers of before
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
		o: o, store: newStore(o.Backbone), pace: usualPace(), room: make(chan struct{}, mostInHand), ahead: mostAhead,
		inHand: make(map[string]bool), line: make(map[string]time.Time), driving: make(chan struct{}),
	}
}

// Run works until ctx ends; then it stops the driver at the next point from which another worker goes on, hands all jobs
// over, and returns nil. It can be called once.
func (w *Worker) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.followInventory(ctx) })
	group.Go(func() error { return w.takeOver(ctx) })
	for _, partitions := range w.store.slots() {
		group.Go(func() error { return w.follow(ctx, partitions) })
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
	for wait := w.pace.beat; ; {
		version, err := w.o.Inventory.Version(ctx)
		if err == nil && version != told {
			if err = w.configure(ctx); err == nil {
				told = version
			}
		}
		switch {
		case err == nil:
			wait, complained = w.pace.beat, ""
		case ctx.Err() == nil:
			if err.Error() != complained {
				w.o.Log.Error("the driver of migrations cannot work; jobs wait until it can", "error", err)
				complained = err.Error()
			}
			if wait = min(2*wait, w.pace.againMax); errors.Is(err, backbone.ErrUnavailable) {
				wait = w.pace.beat // only what the driver says is worth patience
			}
		}
		w.mu.Lock()
		w.ailment = err
		w.mu.Unlock()
		if !relay.Pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// Ailment is why the driver of this node cannot work, or has refused the present inventory; nil where all is well, as far
// as is known.
func (w *Worker) Ailment() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ailment
}

func (w *Worker) configure(ctx context.Context) error {
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
		close(w.driving)
	}
	w.steps = append([]relay.MigrationStep{}, about.Steps...)
	w.servers = make(map[string]relay.Server, len(servers))
	for _, s := range servers {
		w.servers[s.ID] = s
	}
	return nil
}

// follow takes new jobs.
func (w *Worker) follow(ctx context.Context, partitions []int) error {
	if !w.ready(ctx) {
		return ctx.Err()
	}
	err := w.store.ensure(ctx, partitions)
	for {
		var list []waiting
		select {
		case w.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err == nil {
			list, err = w.store.read(ctx, partitions, w.o.Name, readBlock)
		}
		<-w.room
		for _, one := range list {
			w.begin(ctx, one)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		w.o.Log.Warn("cannot read the jobs, will go on", "error", err)
		if !relay.Pause(ctx, w.pace.beat) {
			return ctx.Err()
		}
		err = w.store.ensure(ctx, partitions)
	}
}

// takeOver takes the jobs of workers that have died.
func (w *Worker) takeOver(ctx context.Context) error {
	for w.ready(ctx) && relay.Pause(ctx, w.pace.beat) {
		// Where there is no room, one waits for it in front of the new jobs.
		free := max(1, int64(cap(w.room)-len(w.room)))
		list, err := w.store.abandoned(ctx, w.o.Name, w.pace.hold, free)
		if err != nil && !groupMissing(err) && ctx.Err() == nil {
			w.o.Log.Warn("cannot look for abandoned jobs", "error", err)
		}
		for _, one := range list {
			w.begin(ctx, one)
		}
	}
	return ctx.Err()
}

// begin works on a job that was handed to this worker, once there is room.
func (w *Worker) begin(ctx context.Context, one waiting) {
	if !w.hold(one.job) {
		return // it is in hand, and its next beat says so
	}
	select {
	case w.room <- struct{}{}:
	case <-ctx.Done():
		w.drop(one.job)
		return
	}
	w.jobs.Go(func() {
		defer func() {
			<-w.room
			w.drop(one.job)
		}()
		j, err := w.store.take(ctx, one.partition, one.entry, one.job, w.o.Name)
		if err != nil && ctx.Err() == nil {
			w.o.Log.Warn("cannot take up a job, will try again", "job", one.job, "error", err)
		}
		if err == nil && j != nil {
			newHand(w, j).work(ctx)
		}
	})
}

func (w *Worker) hold(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inHand[job] {
		return false
	}
	w.inHand[job] = true
	w.o.Observer.JobsInHand(len(w.inHand))
	return true
}

func (w *Worker) drop(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.inHand, job)
	delete(w.line, job)
	w.o.Observer.JobsInHand(len(w.inHand))
}

// ready waits until the driver can work: until then other nodes shall have the jobs. After as long as a job may wait it gives
// that up, since somebody has to tell that jobs have expired.
func (w *Worker) ready(ctx context.Context) bool {
	late := time.NewTimer(w.o.ExpireAfter)
	defer late.Stop()
	select {
	case <-w.driving:
	case <-late.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// queue puts a job into the line of those in hand, with the time when it was queued, or none if it runs.
func (w *Worker) queue(job string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line[job] = at
}

// tooMany tells whether too many of those in hand go before a job.
func (w *Worker) tooMany(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := 0
	for _, at := range w.line {
		if at.Before(w.line[job]) {
			before++
		}
	}
	return before >= w.ahead
}

// driver returns the driver's steps once it can work.
func (w *Worker) driver(ctx context.Context) ([]relay.MigrationStep, error) {
	select {
	case <-w.driving:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.steps, nil
}

// settings returns the settings of a server with which the driver was configured, nil if it does not know the server.
func (w *Worker) settings(server string) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[server].Settings
}
