package deliver

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
	// batchRemembers is how many ids of sealed notifications Redis remembers of a sink, to put nothing into two batches that
	// comes again since its ack was not stored.
	batchRemembers = 8192
)

var (
	//go:embed scripts/seal_batch.lua
	sealBatchSource string

	sealBatchScript = redis.NewScript(delaySource + sealBatchSource)
)

// sealing is a batch on its way into the delay queue.
type sealing struct {
	id    string
	lease time.Duration // of the claim of whoever seals it
	came  time.Time     // when its oldest notification came
	args  []any         // of each notification: id, how it is parked, the end of its claim
}

// add appends a notification, and the end of the claim of one that is parked.
func (b *sealing) add(n parked, ends string) {
	b.args = append(b.args, n.ID, n.append(nil), ends)
}

// sealed is what became of it.
type sealed struct {
	// ends is the end of the claim; empty where no notification was left, and "0" where it had been sealed before and is due
	// for anybody.
	ends   string
	parked int64
	out    map[int64]bool // the places of what was left out
}

// sealBatch makes a parked delivery of a batch, claimed for its lease. It may be repeated.
func (s *Store) sealBatch(ctx context.Context, sink string, b *sealing) (sealed, error) {
	keys := s.delay(sink, s.keys.Batched(sink), s.keys.Batches(sink))
	args := append([]any{b.id, b.lease.Milliseconds(), b.came.UnixMilli(), batchRemembers}, b.args...)
	reply, err := sealBatchScript.Run(ctx, s.client, keys, args...).Slice()
	if err != nil {
		return sealed{}, fmt.Errorf("seal a batch: %w", err)
	}
	if len(reply) != 3 {
		return sealed{}, errReply
	}
	ends, ok1 := reply[0].(string)
	count, ok2 := reply[1].(int64)
	out, ok3 := reply[2].([]any)
	if !ok1 || !ok2 || !ok3 {
		return sealed{}, errReply
	}
	result := sealed{ends: ends, parked: count}
	for _, place := range out {
		n, ok := place.(int64)
		if !ok {
			return sealed{}, errReply
		}
		if result.out == nil {
			result.out = make(map[int64]bool, len(out))
		}
		result.out[n] = true
	}
	return result, nil
}
