package dispatch

import (
	"context"
	"log/slog"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
)

// Queues are the queues of the sinks and their positions. See [queue.Store].
type Queues interface {
	RegisterSinks(ctx context.Context, partition int, fromStart map[string]bool) (queue.DispatchState, error)
	Enqueue(ctx context.Context, r queue.EnqueueRequest) (queue.EnqueueResult, error)
	CountAccounts(ctx context.Context, sink string, partition int) (map[string]int64, error)
	DropNewest(
		ctx context.Context, sink string, partition int, count int64, atMost map[string]int64,
	) ([]relay.Notification, error)
	DropOldest(ctx context.Context, sink string, partition int, maxLen int64) (dropped int64, err error)
	DropOldestBytes(ctx context.Context, sink string, partition int, maxBytes int64) (dropped int64, err error)
	Lengths(ctx context.Context, partition int, sinks []string) ([]int64, error)
	Sizes(ctx context.Context, partition int, sinks []string) ([]int64, error)
	DetachSinks(
		ctx context.Context, partition int, position string, generation int64, sinks []string,
	) (newGeneration int64, err error)
}

// Log is the log that a dispatcher reads. See [eventlog.Log].
type Log interface {
	Range(ctx context.Context, partition int, after string, count int) ([]relay.Notification, error)
	HasRangeAfter(ctx context.Context, partition int, after string) (bool, error)
	Trim(ctx context.Context, partition int, r eventlog.Retention) error
}

// Memory is the memory of Redis. See [storage.Monitor].
type Memory interface {
	// QueueLimit returns the memory that the queues of all sinks should not exceed together, in bytes, or 0 for no limit, and
	// whether Redis is so full that publishing is stopped. Each queue may exceed its share by an entry.
	QueueLimit() (total int64, isFull bool)
	// Measure updates the limit.
	Measure(ctx context.Context)
}

type noLimit struct{}

func (noLimit) QueueLimit() (int64, bool) { return 0, false }
func (noLimit) Measure(context.Context)   {}

// Lease is held by one dispatcher of a partition at a time. It only avoids double work.
type Lease interface {
	Run(ctx context.Context, fn func(context.Context) error) error
}

// Observer counts for metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// Enqueued counts entries that were copied to a sink's queue.
	Enqueued(sink string, n int)
	// Dropped counts the entries that were removed from a full queue, or excluded because of an account's share.
	Dropped(sink string, n int64)
	// TrimmedBeforeEnqueue counts matched entries that were trimmed before they were enqueued.
	TrimmedBeforeEnqueue(partition, n int)
}

type noopObserver struct{}

func (noopObserver) Enqueued(string, int)          {}
func (noopObserver) Dropped(string, int64)         {}
func (noopObserver) TrimmedBeforeEnqueue(int, int) {}

// Options configure the dispatcher of one partition.
type Options struct {
	Partition int
	// Partitions is the number of partitions, among which the backlogs are divided.
	Partitions int
	Matcher    *Matcher
	Log        Log
	Queues     Queues
	// Lease is the lease "dispatch:<partition>".
	Lease Lease
	// Retention returns the limits of the part of the log that has been dispatched. It is called once per trim. Nil sets no
	// limit.
	Retention func() eventlog.Retention
	// Memory limits the memory of the queues. Nil sets no limit.
	Memory Memory
	// RetrySizes returns the memory of the scheduled retries of sinks, which counts with their queues, in bytes. Nil counts
	// none.
	RetrySizes func(ctx context.Context, sinks []string) ([]int64, error)
	// RecordSinks records that entries after a position are matched with these sinks. It is called before that, again after
	// an error, and once for the same sinks while the lease is held. Nil records nothing.
	RecordSinks func(ctx context.Context, after string, sinks []Sink) error
	// RecordExcluded is called for each notification that a sink does not get, because its account has used its share. n
	// has no data. It must not block. It may be nil.
	RecordExcluded func(n *relay.Notification, sink string)
	// RecordLag is called after each read of the log with whether more entries wait. It must not block. It may be nil.
	RecordLag func(isLagging bool)

	// Logger and Observer may be nil.
	Logger   *slog.Logger
	Observer Observer
}
