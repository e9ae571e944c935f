package store

import (
	"context"
	_ "embed"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// batchDedupSize is the number of notification IDs of sealed batches that Redis keeps per sink. A notification whose
// ack was lost is delivered again by its queue, and must not get into a second batch.
const batchDedupSize = 8192

var (
	//go:embed scripts/seal_batch.lua
	sealBatchSource string

	sealBatchScript = redisconn.NewScript(retryQueueSource + sealBatchSource)
)

// Batches stores batches.
type Batches struct{ db }

// BatchItem is a notification of a batch.
type BatchItem struct {
	Notification relay.Notification
	// LeaseEnd is that of the claim if the notification was scheduled, and otherwise empty.
	LeaseEnd string
}

// SealedBatch is the result of sealing a batch.
type SealedBatch struct {
	// LeaseEnd is the end of the claim on the batch. It is empty if no notification was left.
	LeaseEnd string
	// IsRepeated is set if the batch was sealed before. It is then due for any node.
	IsRepeated bool
	// Depth is the number of scheduled deliveries.
	Depth int64
	// Excluded contains the indexes of the items that are not in the batch.
	Excluded map[int64]bool
}

// Seal makes a scheduled delivery of a batch and claims it for the duration of the lease. arrivedAt is the time of its
// oldest notification. Seal may be repeated with the same ID.
func (b *Batches) Seal(
	ctx context.Context, sink, id string, items []BatchItem, lease time.Duration, arrivedAt time.Time,
) (SealedBatch, error) {
	keys := b.retryKeys(sink, BatchedIDsKey(b.keys, sink), BatchLogKey(b.keys, sink))
	args := make([]any, 0, 4+3*len(items))
	args = append(args, id, lease.Milliseconds(), arrivedAt.UnixMilli(), batchDedupSize)
	for _, item := range items {
		n := newNotification(item.Notification)
		args = append(args, n.ID, n.appendTo(nil), item.LeaseEnd)
	}
	reply, err := b.runReplicated(ctx, sealBatchScript, keys, args...).Slice()
	if err != nil {
		return SealedBatch{}, redisconn.WrapError("seal batch", err)
	}
	if len(reply) != 3 {
		return SealedBatch{}, errReply
	}
	leaseEnd, ok1 := reply[0].(string)
	depth, ok2 := reply[1].(int64)
	excluded, ok3 := reply[2].([]any)
	if !ok1 || !ok2 || !ok3 {
		return SealedBatch{}, errReply
	}
	result := SealedBatch{LeaseEnd: leaseEnd, Depth: depth}
	if leaseEnd == "0" {
		result.LeaseEnd, result.IsRepeated = "", true
	}
	for _, index := range excluded {
		i, ok := index.(int64)
		if !ok {
			return SealedBatch{}, errReply
		}
		if result.Excluded == nil {
			result.Excluded = make(map[int64]bool, len(excluded))
		}
		result.Excluded[i] = true
	}
	return result, nil
}
