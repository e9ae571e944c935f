package redisconn

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// outageInterval is the time between two records of an outage. An outage has ended if no operation has failed for this
// time, because the relay renews its leases more often.
const outageInterval = 10 * time.Second

// OutageHandler summarizes the warnings and errors of all operations that fail because Redis is not available
// ([ErrUnavailable]) or full ([ErrFull]). It writes one record when such a state begins, one every ten seconds, and one
// after its end. Other records pass unchanged. It is safe for concurrent use.
type OutageHandler struct {
	slog.Handler              // with the attributes and groups of the logger
	unavailable, full *outage // shared by all handlers that are derived from one
}

// outage is the state of the current outage.
type outage struct {
	handler                       slog.Handler // without attributes
	beginText, stillText, endText string

	mu            sync.Mutex
	began, latest time.Time // of failures, zero without an outage
	recorded      time.Time
	suppressed    int
	end           *time.Timer
}

// NewOutageHandler returns an OutageHandler that writes to h.
func NewOutageHandler(h slog.Handler) *OutageHandler {
	return &OutageHandler{
		Handler: h,
		unavailable: &outage{
			handler: h, beginText: "redis is not available", stillText: "redis is still not available",
			endText: "redis is available again",
		},
		full: &outage{
			handler: h, beginText: "redis is full", stillText: "redis is still full", endText: "redis has room again",
		},
	}
}

// Handle implements [slog.Handler].
func (h *OutageHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	var cause error
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && errors.Is(err, ErrUnavailable) {
			cause = err
		}
		return cause == nil
	})
	if cause == nil {
		return h.Handler.Handle(ctx, r)
	}
	if errors.Is(cause, ErrFull) {
		return h.full.recordFailure(ctx, cause)
	}
	return h.unavailable.recordFailure(ctx, cause)
}

// WithAttrs implements [slog.Handler].
func (h *OutageHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &OutageHandler{Handler: h.Handler.WithAttrs(attrs), unavailable: h.unavailable, full: h.full}
}

// WithGroup implements [slog.Handler].
func (h *OutageHandler) WithGroup(name string) slog.Handler {
	return &OutageHandler{Handler: h.Handler.WithGroup(name), unavailable: h.unavailable, full: h.full}
}

func (o *outage) recordFailure(ctx context.Context, cause error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.latest = now
	if o.began.IsZero() {
		o.began, o.recorded = now, now
		o.end = time.AfterFunc(outageInterval, o.recordEnd)
		return o.write(ctx, slog.LevelWarn, o.beginText, slog.Any("error", cause))
	}
	o.end.Reset(outageInterval)
	o.suppressed++
	if now.Sub(o.recorded) < outageInterval {
		return nil
	}
	o.recorded = now
	return o.write(ctx, slog.LevelWarn, o.stillText, slog.Any("error", cause),
		slog.String("duration", now.Sub(o.began).Round(time.Second).String()), slog.Int("suppressed_lines", o.suppressed))
}

func (o *outage) recordEnd() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() || time.Since(o.latest) < outageInterval { // a failure during the call
		return
	}
	// Nothing can be done about a record that cannot be written.
	_ = o.write(context.Background(), slog.LevelInfo, o.endText,
		slog.String("duration", o.latest.Sub(o.began).Round(time.Second).String()),
		slog.Int("suppressed_lines", o.suppressed))
	o.began, o.suppressed = time.Time{}, 0
}

func (o *outage) write(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) error {
	if !o.handler.Enabled(ctx, level) {
		return nil
	}
	r := slog.NewRecord(time.Now(), level, message, 0)
	r.AddAttrs(attrs...)
	return o.handler.Handle(ctx, r)
}
