package store

import (
	"context"
	_ "embed"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/failure_start.lua
	recordFailureSource string

	recordFailureScript = redisconn.NewScript(recordFailureSource)
)

// Failures stores since when each sink has only failed, on all nodes together.
type Failures struct{ db }

// Record records a failure and returns the time since the first failure after the last success.
func (s *Failures) Record(ctx context.Context, sink string) (time.Duration, error) {
	ms, err := recordFailureScript.Run(ctx, s.client, []string{FailureStartKey(s.keys, sink)}).Int64()
	if err != nil {
		return 0, redisconn.WrapError("record failure", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// Clear records a success.
func (s *Failures) Clear(ctx context.Context, sink string) error { return s.clearFailures(ctx, sink) }

func (d db) clearFailures(ctx context.Context, sink string) error {
	if err := d.client.Del(ctx, FailureStartKey(d.keys, sink)).Err(); err != nil {
		return redisconn.WrapError("clear failures", err)
	}
	return nil
}
