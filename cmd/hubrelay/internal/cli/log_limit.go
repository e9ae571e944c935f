package cli

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// warningInterval is the minimum time between two warnings of the same kind.
const warningInterval = time.Minute

// repeatLimiter is a log handler that drops repeated warnings. The client of `listen` logs one for each failed
// attempt to connect. Any other record, such as the next connection, ends the limit.
type repeatLimiter struct {
	slog.Handler
	now func() time.Time

	mu      *sync.Mutex
	printed map[string]time.Time // by message
}

func newRepeatLimiter(next slog.Handler) *repeatLimiter {
	return &repeatLimiter{Handler: next, now: time.Now, mu: new(sync.Mutex), printed: map[string]time.Time{}}
}

// Handle forwards r unless it repeats a warning of the last minute.
func (l *repeatLimiter) Handle(ctx context.Context, r slog.Record) error {
	if l.isRepeated(r) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

func (l *repeatLimiter) isRepeated(r slog.Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Level != slog.LevelWarn {
		clear(l.printed)
		return false
	}
	now := l.now()
	if at, ok := l.printed[r.Message]; ok && now.Sub(at) < warningInterval {
		return true
	}
	l.printed[r.Message] = now
	return false
}

// WithAttrs returns a handler that shares the limits of l.
func (l *repeatLimiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *l
	c.Handler = l.Handler.WithAttrs(attrs)
	return &c
}

// WithGroup returns a handler that shares the limits of l.
func (l *repeatLimiter) WithGroup(name string) slog.Handler {
	c := *l
	c.Handler = l.Handler.WithGroup(name)
	return &c
}
