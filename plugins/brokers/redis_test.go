package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestExplainRedisTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			fmt.Errorf("xadd: %w", redis.ErrPoolTimeout),
			"all connections were in use for 11s, so the message was not sent",
		},
		{
			fmt.Errorf("xadd: %w", os.ErrDeadlineExceeded),
			"the broker did not respond within 11s; it may have stored the message, and a repeat has the same ID",
		},
		{errors.New("OOM"), "OOM"},
	} {
		if got := explainRedisTimeout(c.err, 11*time.Second); got.Error() != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
	if err := explainRedisTimeout(nil, 0); err != nil {
		t.Errorf("got %v, want success", err)
	}
}

// The deadline of the connection can pass before the one of the context.
func TestExplainDialTimeout(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	const want = "the broker did not respond within 5s"
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{t.Context(), fmt.Errorf("read: %w", os.ErrDeadlineExceeded), want},
		{ended, errors.New("closed"), want},
		{t.Context(), errors.New("connection refused"), "connection refused"},
	} {
		if got := explainDialTimeout(c.ctx, c.err); got.Error() != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}
