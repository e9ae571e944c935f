package delivery

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// retryNowBatch is how many parked deliveries are looked at in one go.
const retryNowBatch = 1000

var (
	//go:embed scripts/retry_now.lua
	hastenSource string

	hastenScript = redis.NewScript(delaySource + hastenSource)
)

// RetryNow makes due at once what the sink has parked for another attempt, for somebody who knows that its receiver is back. It returns
// how many were not due before. What is being attempted is left alone, as is what waits behind another of its ordering key,
// which is due when that one is over. It leaves Redis to the others for half of the time. After an error, what was done before it is
// done, and a repeat does no harm.
func (s *Store) RetryNow(ctx context.Context, sink string) (int, error) {
	total := 0
	for from := ""; ; {
		start := time.Now()
		reply, err := hastenScript.Run(ctx, s.client, s.retryQueueKeys(sink), from, retryNowBatch).Slice()
		if err != nil {
			return total, fmt.Errorf("make parked deliveries due: %w", err)
		}
		if len(reply) != 2 {
			return total, errReply
		}
		n, ok1 := reply[0].(int64)
		next, ok2 := reply[1].(string)
		if !ok1 || !ok2 {
			return total, errReply
		}
		total += int(n)
		if n > 0 && total == int(n) || next == "" {
			// The first ones are due, or the last. A Redis that is full counts no change, and nodes look a little later.
			var refused redis.Error
			if err := s.signalChange(ctx); err != nil && !errors.As(err, &refused) {
				return total, err
			}
		}
		if next == "" {
			return total, nil
		}
		from = next
		if err := yieldRedis(ctx, time.Since(start)); err != nil {
			return total, err
		}
	}
}
