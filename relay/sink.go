package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// Sink delivers notifications to one destination outside the relay.
//
// Deliver makes one attempt and never retries: schedule, concurrency, dead letters and metrics belong to the caller.
// It returns nil once the destination has taken responsibility, and honours ctx, whose deadline is the attempt's
// and which may end a little later than Deliver.
// A plain error is retried; [Permanent], [RetryAfter] and [Gone] say otherwise. Deliver may be called concurrently
// and must not change the Delivery. No error may carry a secret.
//
// Close releases what the sink holds. It may be called twice, and is called only after every Deliver returned.
type Sink interface {
	Deliver(ctx context.Context, d Delivery) error
	Close() error
}

// Delivery is the unit of work of a sink: one id, one attempt at a time, one outcome.
type Delivery struct {
	// ID is stable over attempts, replays and restarts; receivers recognise repeats by it.
	ID string
	// Attempt counts from 1.
	Attempt int
	// Notifications holds at least one.
	Notifications []Notification
	// Digest is nil for the delivery of one notification as it came.
	Digest *Digest
	// Batch says that the sink takes notifications by the batch, of which this is one: all of them are here, in the order of
	// the log, and there may be one alone. A delivery is never a digest, too.
	Batch bool
}

// Digest says what a delivery was gathered from. Of many notifications the delivery holds only the first; all are counted
// here.
type Digest struct {
	// Count is how many were gathered, at least as many as the delivery holds.
	Count int `json:"count"`
	// First and Last are when the earliest and the latest of them were stored.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Shared is what they have in common: values under "topic", "hub" or "cluster". It may be empty.
	Shared map[string]string `json:"by,omitempty"`
	// Topics counts them by topic.
	Topics map[string]int `json:"topics"`
}

// Starter is a [Sink] that has something to start before the first delivery needs it. Start is called once the daemon
// delivers; it must not block, and Deliver works without it. Close ends what it started.
type Starter interface {
	Start()
}

// HealthReporter is a [Sink] that can tell why it delivers nothing for now, although nobody has stopped it.
type HealthReporter interface {
	// HealthError is nil where the sink can deliver, as far as it knows. It may be called concurrently and must not block.
	HealthError() error
}

// RateKeyer is a [Sink] whose destination has a rate of its own, whichever sinks of the configuration lead there. Sinks
// with equal keys share one rate.
type RateKeyer interface {
	// RateKey must not show a secret: it becomes part of a name in Redis. It may change when a file is read again.
	RateKey() string
}

// ExtraRequestCounter is a [Sink] whose Deliver may ask its destination more than once, which counts in the sink's rate.
type ExtraRequestCounter interface {
	// TakeExtraRequests returns how many requests have been made since it was last called, besides one for each Deliver. It is called after
	// every Deliver, concurrently, and must not block.
	TakeExtraRequests() int
}

// SinkKind is what the daemon knows of one type of sink. The list of kinds is explicit, in cmd.
type SinkKind struct {
	// Type is the value of "type" in the configuration.
	Type string
	// Config returns a pointer to a new struct with the kind's defaults, whose fields carry `koanf` tags.
	Config func() SinkConfig
	// Rate is the limit of a sink for which the operator gives none.
	Rate Rate
	// DigestWhenLimited says that deliveries which must wait for the rate are better sent together, as a digest.
	DigestWhenLimited bool
	// SupportsBatches says that the kind takes deliveries of several notifications whole ([Delivery.Batch]).
	SupportsBatches bool
	// Open builds the sink from what Config returned, filled and validated. It starts nothing and does not dial.
	Open func(SinkSettings, SinkConfig) (Sink, error)
}

// OpenAs returns the Open of a kind whose Config returns a C. What names the kind in errors, such as "slack sink".
func OpenAs[C SinkConfig, S Sink](what string, open func(SinkSettings, C) (S, error)) func(SinkSettings, SinkConfig) (Sink, error) {
	return func(s SinkSettings, c SinkConfig) (Sink, error) {
		own, ok := c.(C)
		if !ok {
			return nil, fmt.Errorf("open %s %s: its configuration is a %T", what, s.Name, c)
		}
		sink, err := open(s, own)
		if err != nil {
			return nil, fmt.Errorf("open %s %s: %w", what, s.Name, err)
		}
		return sink, nil
	}
}

// SinkConfig is the part of a sink's configuration that belongs to its kind alone.
type SinkConfig interface {
	// Validate reports each bad value as a [FieldError], several of them joined by [errors.Join], so that an operator
	// sees all at once.
	Validate() error
}

// BatchConfig is a [SinkConfig] of a kind that takes batches, though not with every configuration.
type BatchConfig interface {
	// CheckBatch is called where the operator asks for batches, after Validate, and says as a sentence part that follows the
	// name of a key what stands against them.
	CheckBatch() error
}

// ConfigWarner is a [SinkConfig] that has something to tell the operator which stops nothing.
type ConfigWarner interface {
	// Warnings is called after Validate found nothing wrong.
	Warnings() []FieldError
}

// SampleValidator is a [SinkConfig] that can tell from samples what would go wrong with notifications, such as templates.
type SampleValidator interface {
	// ValidateSamples is called after Validate found nothing wrong, with the sink's name, a sample of each topic that it wants and,
	// where it may get digests, one of those. It sends nothing, and reports like Validate; that ctx ended is no mistake: what it
	// has found until then is all that it returns.
	ValidateSamples(ctx context.Context, sink string, samples []Delivery) error
}

// Preflight is a [SinkConfig], or a [DriverConfig], of which only a trial can tell more, such as the start of a plugin.
type Preflight interface {
	// Preflight is called after Validate found nothing wrong, with the sink's name, where somebody wants to know before the
	// configuration counts. It dials nobody, changes nothing, and ends soon after ctx. Mistakes are reported as by Validate;
	// whatever else kept it from an answer is a warning. It may be called concurrently.
	Preflight(ctx context.Context, name string) (warnings []FieldError, err error)
}

// BaseDirSetter is a [SinkConfig] that has paths of its own which are relative to the configuration file.
type BaseDirSetter interface {
	// SetBaseDir is called with the folder of the configuration file, before Validate.
	SetBaseDir(folder string)
}

// ResolvePath is where a name of a configuration file in folder leads. It begins with a slash wherever the daemon runs.
func ResolvePath(folder, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	path := filepath.Join(folder, name)
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return path
}

// SinkSettings is what the daemon hands to every sink, as opposed to what an operator writes in YAML.
type SinkSettings struct {
	// Name is the sink's name in the configuration.
	Name string
	// Log is the sink's own logger, never nil.
	Log *slog.Logger
	// UserAgent names the relay and its version to the far side.
	UserAgent string
	// Samples returns deliveries that look like those which the sink may get, for what it has to try before it uses it; nil
	// where nothing is to be tried. It may be called concurrently.
	Samples func() []Delivery
	// State is what the sink remembers for all nodes; nil where it is opened only to be looked at.
	State StateStore
	// Observe counts something that has happened inside the sink, for metrics; nil where nobody counts. There are few
	// different events, it may be called concurrently, and it does not block.
	Observe func(event string)
}

// FieldError says which field of a configuration is wrong, why, and what to do.
type FieldError struct {
	// Field is the path below the struct as its `koanf` tags spell it, with dots: "retry.schedule".
	Field string
	// Problem is a sentence part that follows the field's name.
	Problem string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Problem }

// Outcome says what follows from an attempt.
type Outcome int

// The outcomes of an attempt.
const (
	// OutcomeDelivered means that the destination has it.
	OutcomeDelivered Outcome = iota
	// OutcomeRetry means that a later attempt may succeed.
	OutcomeRetry
	// OutcomePermanent means that no attempt will ever succeed for this delivery.
	OutcomePermanent
	// OutcomeGone means that the destination wants nothing any more, this delivery included.
	OutcomeGone
)

// String names the outcome as logs and metrics do.
func (o Outcome) String() string {
	switch o {
	case OutcomeDelivered:
		return "delivered"
	case OutcomePermanent:
		return "permanent"
	case OutcomeGone:
		return "gone"
	default:
		return "retry"
	}
}

type outcomeError struct {
	err        error
	outcome    Outcome
	retryAfter time.Duration
}

func (e *outcomeError) Error() string { return e.err.Error() }
func (e *outcomeError) Unwrap() error { return e.err }

// Permanent marks err as one that no retry will mend: the delivery becomes a dead letter. Permanent(nil) is nil.
func Permanent(err error) error { return withOutcome(err, OutcomePermanent, 0) }

// RetryAfter marks err as one to retry no sooner than after d, because the far side named a time. RetryAfter(nil, d)
// is nil.
func RetryAfter(err error, d time.Duration) error { return withOutcome(err, OutcomeRetry, d) }

// Gone marks err as the far side's wish to receive nothing more: the sink is disabled and keeps its backlog. Gone(nil)
// is nil.
func Gone(err error) error { return withOutcome(err, OutcomeGone, 0) }

func withOutcome(err error, o Outcome, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, outcome: o, retryAfter: after}
}

// Classify returns what follows from the error that Deliver returned, and for a retry the least time to wait (zero
// where the far side named none).
func Classify(err error) (Outcome, time.Duration) {
	if err == nil {
		return OutcomeDelivered, 0
	}
	var o *outcomeError
	if errors.As(err, &o) {
		return o.outcome, o.retryAfter
	}
	return OutcomeRetry, 0
}

// ResponseError is the answer of a destination that did not accept a delivery. Sinks return it, marked or not, so that
// dead letters can show what the far side said.
type ResponseError struct {
	// Status is the protocol's status code, for HTTP the status.
	Status int
	// Body is the beginning of the answer, at most 1 KiB, valid UTF-8.
	Body string
}

func (e *ResponseError) Error() string { return fmt.Sprintf("answered %d", e.Status) }

type statusKey struct{}

// WithStatusCallback returns a context for a Deliver of which somebody wants to know what the destination answered when it took
// the delivery. Tell is called with the protocol's status, at most once, and perhaps never.
func WithStatusCallback(ctx context.Context, tell func(status int)) context.Context {
	return context.WithValue(ctx, statusKey{}, tell)
}

// ReportStatus is called by a [Sink] whose destination has taken the delivery, with the status of its answer. It costs next to
// nothing where nobody asks.
func ReportStatus(ctx context.Context, status int) {
	if tell, ok := ctx.Value(statusKey{}).(func(int)); ok {
		tell(status)
	}
}
