package store

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/make_due_ids.lua
	makeDueIDsSource string
	//go:embed scripts/drop_scheduled.lua
	dropScheduledSource string

	makeDueIDsScript    = redisconn.NewScript(retryQueueSource + makeDueIDsSource)
	dropScheduledScript = redisconn.NewScript(retryQueueSource + dropScheduledSource)
)

// ChangeStatus is the result of a change for one scheduled delivery or dead letter.
type ChangeStatus string

// The statuses of changes. Only a changed delivery is different from before.
const (
	Changed          ChangeStatus = "changed"
	UnchangedRunning ChangeStatus = "running"  // an attempt is running
	UnchangedBlocked ChangeStatus = "ordering" // it waits for an earlier delivery with its ordering key
	UnchangedMissing ChangeStatus = "missing"  // it is not scheduled, or not a dead letter

	UnchangedUnreadable ChangeStatus = "unreadable" // it cannot be decoded
)

// MakeDueIDs makes some scheduled deliveries of a sink due at once and returns the status of each. A repetition is safe.
func (rt *Retries) MakeDueIDs(ctx context.Context, sink string, ids []string) ([]ChangeStatus, error) {
	const operation = "make deliveries due"
	if len(ids) == 0 {
		return nil, nil
	}
	statuses, err := runChange(ctx, rt.client, makeDueIDsScript, rt.retryKeys(sink), toArgs(ids))
	if err == nil && len(statuses) != len(ids) {
		err = errReply
	}
	if err != nil {
		return nil, redisconn.WrapError(operation, err)
	}
	return statuses, rt.signalChange(ctx)
}

// runChange runs a script that returns statuses.
func runChange(
	ctx context.Context, client redis.UniversalClient, script *redis.Script, keys []string, args []any,
) ([]ChangeStatus, error) {
	reply, err := script.Run(ctx, client, keys, args...).StringSlice()
	if err != nil {
		return nil, err
	}
	statuses := make([]ChangeStatus, len(reply))
	for i, status := range reply {
		statuses[i] = ChangeStatus(status)
	}
	return statuses, nil
}

// Dropped is the result of [Retries.Drop] for one delivery.
type Dropped struct {
	Status ChangeStatus
	// Record is nil if the delivery was not dropped or its record cannot be decoded.
	Record *Record
}

// Drop removes some scheduled deliveries of a sink and returns the status of each. The next deliveries with their ordering
// keys become due.
func (rt *Retries) Drop(ctx context.Context, sink string, ids []string) ([]Dropped, error) {
	const operation = "drop deliveries"
	if len(ids) == 0 {
		return nil, nil
	}
	reply, err := dropScheduledScript.Run(ctx, rt.client, rt.retryKeys(sink), toArgs(ids)...).StringSlice()
	if err == nil && len(reply) != 2*len(ids) {
		err = errReply
	}
	if err != nil {
		return nil, redisconn.WrapError(operation, err)
	}
	list := make([]Dropped, len(ids))
	for i := range list {
		list[i].Status = ChangeStatus(reply[2*i])
		list[i].Record, _ = DecodeRecord(reply[2*i+1])
	}
	return list, rt.signalChange(ctx)
}

func toArgs(ids []string) []any {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return args
}
