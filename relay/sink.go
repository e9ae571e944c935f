package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// Sink delivers notifications to one destination outside the relay. A sink may also implement [Service],
// [SharedLimit], [ConcurrencyReporter] and [Previewer]. Package sinks/sinktest checks an implementation.
type Sink interface {
	// Deliver makes one attempt and never waits to retry: the caller owns the schedule, concurrency, dead letters and
	// metrics. It may repeat a request at once with another token or encoding. It returns nil once the destination has
	// accepted d. A plain error is retried; [Permanent], [RetryAfter] and [Gone] mark other outcomes. The deadline of
	// ctx limits the attempt. Deliver may be called concurrently and must not change d. No error may contain a secret.
	Deliver(ctx context.Context, d Delivery) error
	// Close releases resources. It may be called twice, and only after every Deliver has returned.
	Close() error
}

// Delivery is the unit of work of a sink: one ID, one attempt at a time, one outcome.
type Delivery struct {
	// ID is the same in all attempts, replays and restarts. Receivers use it to detect repeats. The ID of a batch
	// depends on its notifications.
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
	// Shared contains the values that all have in common, with the keys "topic", "hub", "cluster" and "account". It may be
	// empty.
	Shared map[string]string `json:"by,omitempty"`
	// Topics is the number of notifications per topic.
	Topics map[string]int `json:"topics"`
}

// Service is a [Sink] with background work, such as a plugin process.
type Service interface {
	// Start begins the work. It is called once, before the first Deliver, and must not block. Deliver must also work
	// without it. Close stops what Start began.
	Start()
	// Health returns why the sink cannot deliver at present, or nil. It may be called concurrently and must not block.
	Health() error
	// Resume is called on each node when an operator has resumed the sink. Work that was given up starts again. It may be called
	// concurrently and must not block.
	Resume()
}

// SharedLimit is a [Sink] whose destination limits several sinks together. Sinks with equal keys share one rate.
type SharedLimit interface {
	// RateKey returns the key. It must not contain a secret, because it becomes part of a Redis key. The key may
	// change when a file is reloaded.
	RateKey() string
}

// ConcurrencyReporter is a [Sink] that cannot always make as many concurrent attempts as the operator allows. Deliveries then wait
// before their attempt, so its time limit is not used up.
type ConcurrencyReporter interface {
	// ReportConcurrency lets the sink call report with the number of concurrent attempts that it can make: immediately, and whenever
	// the number may have changed. With 0, deliveries wait. report may be called concurrently and does not block. ReportConcurrency is
	// called once, before Start and the first Deliver.
	ReportConcurrency(report func(n int))
}

// SinkKind describes one type of sink. The list of kinds is in package sinks.
type SinkKind struct {
	// Type is the value of "type" in the configuration.
	Type string
	// Config returns a pointer to a new struct with the defaults. Its fields have `koanf` tags.
	Config func() Config
	// Rate is the default limit.
	Rate Rate
	// DigestOverRate means that deliveries which exceed the rate are combined into a digest.
	DigestOverRate bool
	// Batches means that Deliver accepts a [Delivery.Batch].
	Batches bool
	// Probes means that [Config.Check] makes use of [CheckEnv.Probe].
	Probes bool
	// Open creates a sink from a filled and valid Config. It starts nothing and does not dial.
	Open func(SinkSettings, Config) (Sink, error)
}

// OpenAs adapts open, whose configuration has the type C, to [SinkKind.Open]. name describes the kind in errors,
// such as "slack sink".
func OpenAs[C Config, S Sink](
	name string, open func(SinkSettings, C) (S, error),
) func(SinkSettings, Config) (Sink, error) {
	return func(s SinkSettings, c Config) (Sink, error) {
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

// Config is the part of a configuration that a sink or driver defines.
type Config interface {
	// Check returns everything that is wrong or noteworthy. It is called again with more of env set. It sends
	// nothing, does not dial, changes nothing and returns soon after ctx ends. Then it returns what it has found until
	// then; the end of ctx is not an error. It may be called concurrently.
	Check(ctx context.Context, env CheckEnv) Report
}

// CheckEnv defines the extent of a check.
type CheckEnv struct {
	// Name is the name of the sink, or "driver".
	Name string
	// Dir is the directory of the configuration file, for relative paths.
	Dir string
	// Batch is set if the operator configured batches.
	Batch bool
	// Samples returns typical deliveries to render: one for each matching topic and, if the sink may receive digests,
	// a digest. It is nil if rendering is not required.
	Samples func() []Delivery
	// Probe allows to start a plugin for the check.
	Probe bool
}

// Report is the result of [Config.Check]. The configuration is invalid if there are errors.
type Report struct{ Errors, Warnings []FieldError }

// NewReport returns a report with the errors that [errors.Join] has combined in err. An error that is not a
// [FieldError] concerns the whole configuration.
func NewReport(err error, warnings ...FieldError) Report {
	r := Report{Warnings: warnings}
	r.addError(err)
	return r
}

func (r *Report) addError(err error) {
	var several interface{ Unwrap() []error }
	var field *FieldError
	switch {
	case err == nil:
	case errors.As(err, &several):
		for _, one := range several.Unwrap() {
			r.addError(one)
		}
	case errors.As(err, &field):
		r.Errors = append(r.Errors, *field)
	default:
		r.Errors = append(r.Errors, FieldError{Problem: err.Error()})
	}
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
	// Dir is the directory of the configuration file, for relative paths.
	Dir string
	// Log is the logger of the sink. It is never nil.
	Log *slog.Logger
	// UserAgent identifies the relay and its version to the destination.
	UserAgent string
	// Samples returns typical deliveries for this sink, to try changed values such as a template file. It may be
	// called concurrently. It is nil if nothing needs a trial.
	Samples func() []Delivery
	// State is shared by all nodes and survives restarts. It is nil in a dry run.
	State SharedState
	// CountEvent counts an event inside the sink for metrics. The number of different events must be small. It may be
	// called concurrently and does not block. It is nil if events are not counted.
	CountEvent func(event string)
	// CountRequests counts requests besides one per Deliver, which count for the rate. It may be called concurrently
	// and does not block. It is nil in a dry run.
	CountRequests func(n int)
	// WorksElsewhere reports whether the sink works on another node. A failure there is known after about 20 s. An error means that
	// the state of the others is not known.
	// It may be called concurrently. It is nil in a dry run.
	WorksElsewhere func(context.Context) (bool, error)
}

// FieldError reports an invalid field of a configuration, with advice.
type FieldError struct {
	// Field is the path of the field in `koanf` tags, such as "retry.schedule". It is empty for the whole
	// configuration.
	Field string
	// Problem is a phrase that follows the name of the field.
	Problem string
}

func (e FieldError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + " " + e.Problem
}

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
	postponed  bool
}

func (e *outcomeError) Error() string { return e.err.Error() }
func (e *outcomeError) Unwrap() error { return e.err }

// Permanent marks err as final: the delivery becomes a dead letter. Permanent(nil) is nil.
func Permanent(err error) error { return withOutcome(err, OutcomePermanent, 0) }

// RetryAfter marks err as temporary. The next attempt starts after d at the earliest, because the destination
// asked for it. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error { return withOutcome(err, OutcomeRetry, d) }

// Postpone is like [RetryAfter] for an attempt that sent nothing, for example because the program of the sink is not running.
// The attempt does not count, so only the maximum age of the delivery ends it. Postpone(nil, d) is nil.
func Postpone(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, outcome: OutcomeRetry, retryAfter: d, postponed: true}
}

// IsPostponed reports whether err was marked by [Postpone].
func IsPostponed(err error) bool {
	var o *outcomeError
	return errors.As(err, &o) && o.postponed
}

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

func (e *ResponseError) Error() string { return fmt.Sprintf("status %d", e.Status) }

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

// Previewer is a [Sink] that can show what Deliver would send.
type Previewer interface {
	// Preview sends nothing, does not dial, and may be called concurrently with Deliver. The result contains no secret:
	// credentials in addresses and headers are removed or masked, but signatures are shown. Preview may take as long as
	// the start of a plugin.
	Preview(ctx context.Context, d Delivery) (Preview, error)
}

// Preview is one attempt as the destination would see it.
type Preview struct {
	// Method and Target are the request line, such as POST and https://example.com/…. Target has no secret parts.
	Method, Target string
	// Headers are sorted for reading.
	Headers []Header
	// Payload is the exact body.
	Payload []byte
	// Note explains limits of this explanation, such as parts that are missing. It is usually empty.
	Note string
	// Followups are further requests of the same attempt, in order. They have neither a Note nor Followups.
	Followups []Preview
}

// Header is one header line of a request.
type Header struct{ Name, Value string }

// SharedState keeps small values that a [Sink] shares between nodes and across restarts, such as the ID of a
// message it may edit later. Each sink has its own namespace, and values expire. A SharedState may be used
// concurrently.
type SharedState interface {
	// Lock locks name and returns its value, or "" if it has none. The lock ends with Save, Release, or after hold,
	// so the lock of a failed node expires. If the name is already locked, on any node, Lock does not wait and
	// returns an error that wraps [ErrLocked].
	Lock(ctx context.Context, name string, hold time.Duration) (value string, held StateLock, err error)
}

// MaxSharedValue is the maximum length of a value of a [SharedState] in bytes. Values remain until they expire, also in a full
// Redis.
const MaxSharedValue = 64 << 10

// StateLock is a locked name of a [SharedState]. It is used by one goroutine, and either Save or Release is called
// once.
type StateLock interface {
	// Save stores value for ttl and unlocks the name. An empty value deletes the entry. If the lock has expired and
	// another holder has locked or saved the name, Save changes nothing. A value of more than
	// [MaxSharedValue] is an error. The lock then remains, and Release ends it.
	Save(ctx context.Context, value string, ttl time.Duration) error
	// Release unlocks the name without a change.
	Release(ctx context.Context) error
}

// ErrLocked reports that a name of a [SharedState] is locked.
var ErrLocked = errors.New("state is locked by another holder")
