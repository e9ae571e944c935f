package delivery

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// batchBytes bounds what a batch holds besides its number of notifications: one may have 256 KiB.
	batchBytes = 4 << 20
	// batchDedupSize is how many ids of sealed notifications Redis remembers of a sink, to put nothing into two batches that
	// comes again since its ack was not stored.
	batchDedupSize = 8192
)

var (
	//go:embed scripts/seal_batch.lua
	sealBatchSource string

	sealBatchScript = redis.NewScript(delaySource + sealBatchSource)
)

// sealRequest is a batch on its way into the delay queue.
type sealRequest struct {
	id       string
	lease    time.Duration // of the claim of whoever seals it
	oldestAt time.Time     // when its oldest notification came
	args     []any         // of each notification: id, how it is parked, the end of its claim
}

// add appends a notification, and the end of the claim of one that is parked.
func (b *sealRequest) add(n storedNotification, ends string) {
	b.args = append(b.args, n.ID, n.appendTo(nil), ends)
}

// sealResult is what became of it.
type sealResult struct {
	// claimEnd is the end of the claim; empty where no notification was left, and "0" where it had been sealed before and is due
	// for anybody.
	claimEnd  string
	scheduled int64
	excluded  map[int64]bool // the places of what was left out
}

// createBatch makes a parked delivery of a batch, claimed for its lease. It may be repeated.
func (s *Store) createBatch(ctx context.Context, sink string, b *sealRequest) (sealResult, error) {
	keys := s.retryQueueKeys(sink, s.keys.BatchedIDs(sink), s.keys.BatchLog(sink))
	args := append([]any{b.id, b.lease.Milliseconds(), b.oldestAt.UnixMilli(), batchDedupSize}, b.args...)
	reply, err := sealBatchScript.Run(ctx, s.client, keys, args...).Slice()
	if err != nil {
		return sealResult{}, fmt.Errorf("seal a batch: %w", err)
	}
	if len(reply) != 3 {
		return sealResult{}, errReply
	}
	ends, ok1 := reply[0].(string)
	count, ok2 := reply[1].(int64)
	out, ok3 := reply[2].([]any)
	if !ok1 || !ok2 || !ok3 {
		return sealResult{}, errReply
	}
	result := sealResult{claimEnd: ends, scheduled: count}
	for _, place := range out {
		n, ok := place.(int64)
		if !ok {
			return sealResult{}, errReply
		}
		if result.excluded == nil {
			result.excluded = make(map[int64]bool, len(out))
		}
		result.excluded[n] = true
	}
	return result, nil
}
