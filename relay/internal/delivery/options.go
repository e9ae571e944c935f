package delivery

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// What [Options] leave out.
const (
	DefaultTimeout     = 15 * time.Second
	DefaultConcurrency = 16
)

// Options describe the pipeline of one sink.
type Options struct {
	// Name is the sink's name in the configuration.
	Name string
	// Sink makes the attempts. Close closes it.
	Sink relay.Sink
	// Store must be the same Redis that the queues are in.
	Store *store.Store
	// Schedule says when to try again; its zero value never does.
	Schedule Schedule
	// Timeout bounds one attempt, which may take a tenth of a second longer; 15 s where zero.
	Timeout time.Duration
	// Concurrency bounds the attempts that run at once, fresh ones and retries together; 16 where zero.
	Concurrency int
	// Rate bounds the attempts of all nodes together, and of all sinks of one relay.RateKeyer's key; its zero value does
	// not. Burst is how many may begin at once after a pause; where zero, what the rate allows in a second, at least one.
	Rate  relay.Rate
	Burst int
	// Digest gathers notifications into one delivery. A sink that keeps an order gathers nothing.
	Digest Digest
	// DigestWhenLimited says that without a Digest what the rate makes wait is gathered too.
	DigestWhenLimited bool
	// Batch gathers notifications into deliveries of many, for a sink that takes them; not beside a Digest.
	Batch Batch
	// BatchesUnsupported says that the sink takes no batches: one that was sealed while another kind of sink had its name is
	// delivered as a digest that lists all of it.
	BatchesUnsupported bool
	// DisableAfter is how long the sink may only fail, on all nodes together, before it is disabled as if its receiver
	// were gone; never where zero.
	DisableAfter time.Duration
	// Backlog bounds how many deliveries may be parked: while there are as many, fresh ones are not attempted, and nothing
	// that is parked is dropped. It also bounds the dead letters, of which the oldest go. Zero is no bound.
	Backlog int64
	// Ordering is what keeps the order of the log among its deliveries. With one, only the node that has called
	// [Pipeline.RunAsLeader] makes attempts, and Handle parks what is behind another delivery of its key.
	Ordering store.Ordering
	// Fingerprint stands for the sink's own configuration. A disabled sink whose fingerprint has changed is enabled
	// again. Empty means that only [Store.Resume] enables it.
	Fingerprint string

	// Notices tells other sinks what happens to this one, and may be nil.
	Notices *Notices
	// Log, Observer, Now and Random (in [0, 1)) may be nil.
	Log      *slog.Logger
	Observer Observer
	Now      func() time.Time
	Random   func() float64
}

func (o *Options) setDefaults() {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Digest.Max <= 0 {
		o.Digest.Max = DefaultDigestMax
	}
	if o.Batch.Max <= 0 {
		o.Batch.Max = DefaultBatchMax
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noopObserver{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
}
