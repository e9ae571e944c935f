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
// Deliver makes one attempt and never retries: the caller owns the schedule, concurrency, dead letters and
// metrics. It returns nil once the destination has accepted d. A plain error is retried; [Permanent], [RetryAfter]
// and [Gone] mark other outcomes. The deadline of ctx limits the attempt. Deliver may be called concurrently and
// must not change d. No error may contain a secret.
//
// Close releases resources. It may be called twice, and only after every Deliver has returned.
type Sink interface {
	Deliver(ctx context.Context, d Delivery) error
	Close() error
}

// Delivery is the unit of work of a sink: one ID, one attempt at a time, one outcome.
type Delivery struct {
	// ID is the same in all attempts, replays and restarts. Receivers use it to detect repeats.
	ID string
	// Attempt counts from 1.
	Attempt int
	// Notifications has at least one element.
	Notifications []Notification
	// Digest is set if the delivery summarizes several notifications, otherwise nil.
	Digest *Digest
	// Batch reports that this is a batch: Notifications contains all its notifications in the order of the log, maybe
	// only one. A batch has no Digest.
	Batch bool
}

// Digest describes the notifications of a digest. The delivery contains only the first of them, but all are
// counted here.
type Digest struct {
	// Count is the number of summarized notifications. It is at least the number in the delivery.
	Count int `json:"count"`
	// First and Last are the times of the earliest and the latest notification.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Shared contains the values that all have in common, with the keys "topic", "hub" and "cluster". It may be
	// empty.
	Shared map[string]string `json:"by,omitempty"`
	// Topics is the number of notifications per topic.
	Topics map[string]int `json:"topics"`
}

// Starter is a [Sink] with background work, such as a plugin process. Start is called once when the daemon begins
// to deliver, and must not block. Deliver must also work without it. Close stops what Start began.
type Starter interface {
	Start()
}

// HealthReporter is a [Sink] that can report why it cannot deliver at present.
type HealthReporter interface {
	// HealthError returns nil if the sink can deliver, as far as it knows. It may be called concurrently and must not
	// block.
	HealthError() error
}

// RateKeyer is a [Sink] whose destination limits several sinks together. Sinks with equal keys share one rate.
type RateKeyer interface {
	// RateKey returns the key. It must not contain a secret, because it becomes part of a Redis key. The key may
	// change when a file is reloaded.
	RateKey() string
}

// ExtraRequestCounter is a [Sink] whose Deliver may send more than one request. All requests count towards the
// rate.
type ExtraRequestCounter interface {
	// TakeExtraRequests returns the number of requests since the last call, not counting one per Deliver. It is
	// called after every Deliver, concurrently, and must not block.
	TakeExtraRequests() int
}

// SinkKind describes one type of sink. The list of kinds is in package sinks.
type SinkKind struct {
	// Type is the value of "type" in the configuration.
	Type string
	// Config returns a pointer to a new struct with the defaults. Its fields have `koanf` tags.
	Config func() SinkConfig
	// Rate is the default limit.
	Rate Rate
	// DigestWhenLimited reports that deliveries which exceed the rate are combined into a digest.
	DigestWhenLimited bool
	// SupportsBatches reports that Deliver accepts a [Delivery.Batch].
	SupportsBatches bool
	// Open creates a sink from a filled and validated Config. It starts nothing and does not dial.
	Open func(SinkSettings, SinkConfig) (Sink, error)
}

// OpenAs adapts open, whose configuration has the type C, to [SinkKind.Open]. name describes the kind in errors,
// such as "slack sink".
func OpenAs[C SinkConfig, S Sink](
	name string, open func(SinkSettings, C) (S, error),
) func(SinkSettings, SinkConfig) (Sink, error) {
	return func(s SinkSettings, c SinkConfig) (Sink, error) {
		own, ok := c.(C)
		if !ok {
			return nil, fmt.Errorf("open %s %s: unexpected configuration type %T", name, s.Name, c)
		}
		sink, err := open(s, own)
		if err != nil {
			return nil, fmt.Errorf("open %s %s: %w", name, s.Name, err)
		}
		return sink, nil
	}
}

// SinkConfig is the part of a sink's configuration that its kind defines.
type SinkConfig interface {
	// Validate reports all invalid values, each as a [FieldError], combined by [errors.Join].
	Validate() error
}

// BatchConfig is a [SinkConfig] that supports batches only with some values.
type BatchConfig interface {
	// CheckBatch is called after Validate if the operator configured batches. The error explains why batches are
	// impossible. It is a phrase that follows the name of a key.
	CheckBatch() error
}

// ConfigWarner is a [SinkConfig] that can warn the operator about valid values.
type ConfigWarner interface {
	// Warnings is called after Validate has succeeded.
	Warnings() []FieldError
}

// SampleValidator is a [SinkConfig] that can be tried with samples, such as templates.
type SampleValidator interface {
	// ValidateSamples is called after Validate has succeeded. It gets the name of the sink, one sample for each
	// matching topic and, if the sink may receive digests, a sample digest. It sends nothing and reports errors like
	// Validate. If ctx ends, it returns the errors found until then; the end of ctx is not an error.
	ValidateSamples(ctx context.Context, sink string, samples []Delivery) error
}

// Preflight is a [SinkConfig] or a [DriverConfig] that needs a trial to find more errors, such as the start of a
// plugin.
type Preflight interface {
	// Preflight is called after Validate has succeeded, with the name of the sink, to check a configuration before it
	// is applied. It dials no one, changes nothing and returns soon after ctx ends. It reports invalid values like
	// Validate. A warning reports what prevented a check. Preflight may be called concurrently.
	Preflight(ctx context.Context, name string) (warnings []FieldError, err error)
}

// BaseDirSetter is a [SinkConfig] with paths that are relative to the configuration file.
type BaseDirSetter interface {
	// SetBaseDir is called before Validate, with the directory of the configuration file.
	SetBaseDir(dir string)
}

// ResolvePath returns the absolute path of name, which is relative to dir.
func ResolvePath(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	path := filepath.Join(dir, name)
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return path
}

// SinkSettings are the settings of a sink that come from the daemon.
type SinkSettings struct {
	// Name is the name of the sink in the configuration.
	Name string
	// Log is the logger of the sink. It is never nil.
	Log *slog.Logger
	// UserAgent identifies the relay and its version to the destination.
	UserAgent string
	// Samples returns typical deliveries for this sink, to try changed values such as a template file. It may be
	// called concurrently. It is nil if nothing needs a trial.
	Samples func() []Delivery
	// State is shared by all nodes. It is nil in a dry run.
	State StateStore
	// Observe counts an event inside the sink for metrics. The number of different events must be small. It may be
	// called concurrently and does not block. It is nil if events are not counted.
	Observe func(event string)
}

// FieldError reports an invalid field of a configuration, with advice.
type FieldError struct {
	// Field is the path of the field in `koanf` tags, such as "retry.schedule".
	Field string
	// Problem is a phrase that follows the name of the field.
	Problem string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Problem }

// Outcome classifies the result of an attempt.
type Outcome int

// The outcomes of an attempt.
const (
	// OutcomeDelivered means that the destination accepted the delivery.
	OutcomeDelivered Outcome = iota
	// OutcomeRetry means that a later attempt may succeed.
	OutcomeRetry
	// OutcomePermanent means that no attempt can succeed for this delivery.
	OutcomePermanent
	// OutcomeGone means that the destination accepts no deliveries any longer.
	OutcomeGone
)

// String returns the name that logs and metrics use.
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

// Permanent marks err as final: the delivery becomes a dead letter. Permanent(nil) is nil.
func Permanent(err error) error { return withOutcome(err, OutcomePermanent, 0) }

// RetryAfter marks err as temporary. The next attempt starts after d at the earliest, because the destination
// asked for it. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error { return withOutcome(err, OutcomeRetry, d) }

// Gone marks err as the refusal of all deliveries: the sink is disabled and keeps its backlog. Gone(nil) is nil.
func Gone(err error) error { return withOutcome(err, OutcomeGone, 0) }

func withOutcome(err error, o Outcome, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, outcome: o, retryAfter: after}
}

// Classify returns the outcome of an error returned by Deliver. For a retry the second result is the minimum
// delay, or 0 if the destination gave none.
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

// ResponseError is the response of a destination that rejected a delivery. Sinks return it, marked or plain, so
// dead letters can show the response.
type ResponseError struct {
	// Status is the status code of the protocol, such as the HTTP status.
	Status int
	// Body is the beginning of the response: at most 1 KiB, valid UTF-8.
	Body string
}

func (e *ResponseError) Error() string { return fmt.Sprintf("answered %d", e.Status) }

type statusKey struct{}

// WithStatusCallback returns a context for Deliver. If the destination accepts the delivery and the sink knows the
// status code, the sink calls callback with it, at most once.
func WithStatusCallback(ctx context.Context, callback func(status int)) context.Context {
	return context.WithValue(ctx, statusKey{}, callback)
}

// ReportStatus reports the status code of a successful attempt to the callback of [WithStatusCallback]. A [Sink]
// calls it in Deliver. Without a callback it does nothing.
func ReportStatus(ctx context.Context, status int) {
	if callback, ok := ctx.Value(statusKey{}).(func(int)); ok {
		callback(status)
	}
}
