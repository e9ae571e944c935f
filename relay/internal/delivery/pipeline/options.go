package pipeline

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/attempt"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/notice"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/history"
)

// The defaults of [Options].
const (
	DefaultTimeout     = 15 * time.Second
	DefaultConcurrency = 16
)

// unavailableAfter is the time for which a sink can make no attempts on a node until the node leaves its deliveries to others. It
// is longer than a plugin needs to start again after a crash.
const unavailableAfter = 15 * time.Second

// Options configure the pipeline of one sink.
type Options struct {
	// Name is the name of the sink in the configuration.
	Name string
	// Sink makes the attempts. The pipeline closes it.
	Sink relay.Sink
	// Store must use the Redis of the queues.
	Store *store.Store
	// Wake makes the scheduler poll the sink after a time, see [retry.Handle.Wake]. It is called from any goroutine and
	// must not block. It may be nil in tests.
	Wake func(after time.Duration)

	// Schedule has no retries if it is empty.
	Schedule Schedule
	// Timeout limits one attempt, which may take a tenth of a second longer. The default is 15 s.
	Timeout time.Duration
	// Concurrency is the maximum number of concurrent attempts, fresh deliveries and retries together. The default is
	// 16.
	Concurrency int
	// Rate limits the attempts of all nodes together, and of all sinks with one relay.SharedLimit key. The zero value
	// means no limit. Burst is the number of attempts that may start at once after a pause. The default is what the
	// rate allows in a second, at least one.
	Rate  relay.Rate
	Burst int
	// TakeExtraRequests returns the number of requests besides one per attempt since the last call. They count for the
	// rate. It may be nil.
	TakeExtraRequests func() int
	// Digest combines notifications into one delivery. An ordered sink ignores it.
	Digest Digest
	// DigestOverRate combines, without a Digest, only notifications that would wait for the rate limit.
	DigestOverRate bool
	// Batch collects notifications into deliveries of many, for a sink that supports them. It cannot be used with a
	// Digest.
	Batch Batch
	// BatchesUnsupported is set for a sink that supports no batches. A batch that was sealed while another kind of sink
	// had this name is delivered as a digest that lists all notifications.
	BatchesUnsupported bool
	// DisableAfter is the time for which the sink may only fail, on all nodes together, before it is disabled. 0 means
	// no limit.
	DisableAfter time.Duration
	// Backlog is the maximum number of scheduled deliveries, at which fresh ones are not attempted. It also limits the
	// dead letters and drops the oldest. 0 means no limit.
	Backlog int64
	// BacklogBytes limits the memory of scheduled deliveries in Redis, at which fresh ones are not attempted, unless the sink has
	// batches. It also limits the memory of the open digests. 0 means no limit.
	BacklogBytes int64
	// DigestBytes returns the maximum memory of the open digests if BacklogBytes is 0. It may be nil.
	DigestBytes func() int64
	// AccountShare is the maximum percentage of the dead letters that one account keeps if there are too many. 0 means no limit.
	AccountShare int
	// Ordering selects the deliveries that keep the order of the log. An ordered sink is delivered only by the node
	// that has called [Pipeline.RunAsLeader].
	Ordering store.Ordering
	// Fingerprint identifies the configuration of the sink. A disabled sink with another fingerprint is enabled. If it
	// is empty, only an operator enables the sink.
	Fingerprint string

	// IsErased reports whether a notification was stored before its account was erased. A delivery is discarded if all its
	// notifications were. It may be nil.
	IsErased func(n *relay.Notification) bool
	// HasOtherAccounts reports whether the queue of the sink has events of other accounts. It is not called concurrently. If it
	// is nil, no delivery is postponed.
	HasOtherAccounts func(ctx context.Context, accounts []string) (bool, error)
	// OnDisabled is called when the relay has disabled the sink, on one of the nodes. It may be nil and must not block.
	OnDisabled func(reason string)
	// Notices informs other sinks about this one. It may be nil.
	Notices *notice.Publisher
	// History records attempts. It may be nil.
	History *history.Recorder
	// Log, Observer, Now and Random (in [0, 1)) may be nil.
	Log      *slog.Logger
	Observer Observer
	Now      func() time.Time
	Random   func() float64

	// Tests set the following fields.
	probeDelay       time.Duration
	unavailableAfter time.Duration
	rates            admission.RateStore
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
	if o.Wake == nil {
		o.Wake = func(time.Duration) {}
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
	if o.IsErased == nil {
		o.IsErased = func(*relay.Notification) bool { return false }
	}
	if o.unavailableAfter <= 0 {
		o.unavailableAfter = unavailableAfter
	}
	if o.rates == nil {
		o.rates = &o.Store.Rates
	}
}

func (o *Options) isOrdered() bool { return o.Ordering.IsOrdered() }

func (o *Options) usesBatches() bool { return o.Batch.Wait > 0 && !o.isOrdered() }

func (o *Options) usesDigests() bool {
	return (o.Digest.Wait > 0 || o.DigestOverRate && o.Rate.Limited()) && !o.isOrdered()
}

// digestWait returns the time for which a digest is open, or 0 without digests. A pause that the destination asks for extends it.
func (o *Options) digestWait() time.Duration {
	switch {
	case !o.usesDigests():
		return 0
	case o.Digest.Wait > 0:
		return o.Digest.Wait
	}
	return o.Rate.Interval()
}

// canPostpone reports whether fresh deliveries have one account each and can be postponed.
func (o *Options) canPostpone() bool {
	return o.HasOtherAccounts != nil && !o.usesBatches() && !o.usesDigests()
}

// claimDuration returns the duration of a claim, which is longer than an attempt.
func (o *Options) claimDuration() time.Duration {
	return o.Timeout + attempt.AbandonGrace + claimMargin
}

// formatForSink returns a delivery as the sink expects it.
func (o *Options) formatForSink(d relay.Delivery) relay.Delivery {
	switch {
	case d.Batch && o.BatchesUnsupported:
		return d.ToDigest()
	case d.Digest == nil && o.usesBatches():
		d.Batch = true // it could not be added to a batch
	case d.Digest == nil && o.usesDigests() && o.Digest.Wait > 0: // it could not be added to a digest
		d = d.ToDigest()
		d.Digest.Shared = SharedAttributes(d.Notifications[0], o.Digest.By)
	}
	return d
}

// maxScheduledBytes returns the memory of scheduled deliveries at which fresh ones wait, or 0 for no limit. With batches there is
// none, because their records contain the events of batches that are delivered now.
func (o *Options) maxScheduledBytes() int64 {
	if o.usesBatches() {
		return 0
	}
	return o.BacklogBytes
}

// scheduledOverhead returns the estimated memory of a scheduled delivery besides its record, in bytes: its entries in two sorted sets,
// and in the sorted set and the hash of the order.
func (o *Options) scheduledOverhead() int64 {
	if o.isOrdered() {
		return 570
	}
	return 220
}

// forAdmission returns the options of the pipeline's admission.
func (o *Options) forAdmission(p *Pipeline) admission.Options {
	rateKey := func() string { return o.Name }
	if keyer, ok := o.Sink.(relay.SharedLimit); ok {
		rateKey = keyer.RateKey
	}
	return admission.Options{
		Concurrency: o.Concurrency, Rate: o.Rate, Burst: o.Burst, RateKey: rateKey, Backlog: o.Backlog,
		BacklogBytes: o.maxScheduledBytes(), ProbeDelay: o.probeDelay,
		SearchRetries: o.canPostpone(), Store: o.rates, State: p.state, Wake: o.Wake, OnOutage: p.reportOutage,
		OnCooldown: p.reportCooldown, Now: o.Now,
	}
}

func (p *Pipeline) reportOutage(isOpen bool, cause error) {
	o := &p.opts
	if isOpen {
		o.Log.Warn("sink is down: its destination fails, its deliveries wait and one probe at a time is sent",
			"failure_count", admission.FailureThreshold, "error", cause)
		return
	}
	o.Log.Info("sink is active: its destination responds again, its deliveries continue")
}

func (p *Pipeline) reportCooldown(isActive bool) {
	o := &p.opts
	if isActive {
		until := o.Now().Add(p.admission.Cooldown())
		o.Log.Warn("sink is throttled: its destination asked to wait", "next_attempt_at", until.UTC().Round(time.Second))
	}
}

// The reasons why a delivery became a dead letter, for [Observer] and logs.
const (
	ReasonPermanent  = "permanent"
	ReasonExhausted  = "exhausted"
	ReasonUnreadable = "unreadable"
)

func (o *Options) deadLetterLimit() store.DeadLetterLimit {
	return store.DeadLetterLimit{Max: o.Backlog, AccountShare: o.AccountShare}
}

// Observer updates metrics. Its methods may be called concurrently and must not block.
type Observer interface {
	// Attempted is called after every attempt. attempt starts at 1, so a higher number is a retry. failure is one of
	// [attempt.FailureReasons], or empty if the event was delivered.
	Attempted(sink string, attempt int, failure string, duration time.Duration)
	// DeadLettered is called with one of the Reason constants.
	DeadLettered(sink, reason string)
	// Dropped is called when n old dead letters were dropped because there were too many.
	Dropped(sink string, n int64)
	// Batched is called when n notifications were sealed as one delivery.
	Batched(sink string, n int)
	// RetryLost is called for a scheduled delivery whose record is missing in Redis.
	RetryLost(sink string)
}

type noopObserver struct{}

func (noopObserver) Attempted(string, int, string, time.Duration) {}
func (noopObserver) DeadLettered(string, string)                  {}
func (noopObserver) Dropped(string, int64)                        {}
func (noopObserver) Batched(string, int)                          {}
func (noopObserver) RetryLost(string)                             {}

const (
	// maxRetryAfter limits the delay that a destination may ask for.
	maxRetryAfter = 24 * time.Hour
	jitter        = 0.2
)

// Schedule contains the delays between attempts. Its zero value allows no retry.
type Schedule struct {
	// Delays are the times before the second, third, … attempt. Each varies by a fifth in both directions.
	Delays []time.Duration
	// MaxAge limits the time from the first attempt to the last, and that of a delivery that is postponed or waits for others with its
	// ordering key. 0 means no limit.
	MaxAge time.Duration
	// MaxAttempts limits the attempts, including the first. If it exceeds the number of Delays, the last of them
	// repeats. 0 means one attempt more than there are Delays.
	MaxAttempts int
}

// Next returns the delay after a failed attempt, whose number starts at 1, of a delivery whose first attempt was age
// ago. It returns false if there is no other attempt. retryAfter is the minimum delay that the destination asked for,
// up to a day and to MaxAge, so it makes no delivery a dead letter before that age. random is in [0, 1).
func (s Schedule) Next(attempt int, age, retryAfter time.Duration, random float64) (time.Duration, bool) {
	last := len(s.Delays)
	switch {
	case attempt < 1 || last == 0,
		s.MaxAttempts == 0 && attempt > last,
		s.MaxAttempts > 0 && attempt >= s.MaxAttempts:
		return 0, false
	}
	delay := time.Duration(float64(s.Delays[min(attempt, last)-1]) * (1 - jitter + 2*jitter*random))
	retryAfter = min(retryAfter, maxRetryAfter)
	if s.MaxAge > 0 {
		if age+delay > s.MaxAge {
			return 0, false
		}
		retryAfter = min(retryAfter, s.MaxAge-age)
	}
	return max(delay, retryAfter, 0), true
}

// isTooOld reports whether a delivery that has a record gets no other attempt. One of an ordered sink gets at least one, because it
// may have waited for others.
func (o *Options) isTooOld(r *store.Record) bool {
	return o.Schedule.MaxAge > 0 && !r.First.IsZero() && o.Now().Sub(r.First) > o.Schedule.MaxAge &&
		(r.AttemptCount > 0 || !o.isOrdered())
}
