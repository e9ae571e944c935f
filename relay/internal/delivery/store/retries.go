package store

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/retry_queue.lua
	retryQueueSource string
	//go:embed scripts/retry_schedule.lua
	scheduleSource string
	//go:embed scripts/schedule_all.lua
	scheduleAllSource string
	//go:embed scripts/reschedule.lua
	rescheduleSource string
	//go:embed scripts/complete.lua
	completeSource string
	//go:embed scripts/split.lua
	splitSource string
	//go:embed scripts/make_due.lua
	makeDueSource string

	scheduleScript    = redisconn.NewScript(retryQueueSource + scheduleSource)
	scheduleAllScript = redisconn.NewScript(retryQueueSource + scheduleAllSource)
	rescheduleScript  = redisconn.NewScript(retryQueueSource + rescheduleSource)
	completeScript    = redisconn.NewScript(retryQueueSource + completeSource)
	splitScript       = redisconn.NewScript(retryQueueSource + splitSource)
	makeDueScript     = redisconn.NewScript(retryQueueSource + makeDueSource)
)

// Retries stores the deliveries of sinks that wait for their next attempt.
type Retries struct{ db }

// Claim is a node's right to attempt a scheduled delivery until LeaseEnd.
type Claim struct {
	Sink string
	ID   string
	// LeaseEnd is in unix milliseconds of Redis, as Redis formats it.
	LeaseEnd string
	// Body is the encoded [Record].
	Body string
}

// Scheduled is a delivery for the retry queue.
type Scheduled struct {
	ID   string
	Body string
	// OrderingKey is empty for an unordered sink.
	OrderingKey string
}

// Schedule stores a delivery that is due after wait, or after all scheduled deliveries with its ordering key. If it is
// already scheduled, nothing changes. Schedule returns the number of scheduled deliveries.
func (rt *Retries) Schedule(
	ctx context.Context, sink string, d Scheduled, wait time.Duration, arrivedAt time.Time,
) (depth int64, err error) {
	depth, err = rt.runReplicated(ctx, scheduleScript, rt.retryKeys(sink),
		d.ID, wait.Milliseconds(), arrivedAt.UnixMilli(), d.Body, d.OrderingKey).Int64()
	if err != nil {
		return 0, redisconn.WrapError("schedule retry", err)
	}
	return depth, nil
}

// ScheduleAll stores deliveries that are due at once. It skips deliveries that are already scheduled, and stops if the
// queue contains maxBacklog deliveries, unless that is 0. It returns how many were added and how many were processed.
func (rt *Retries) ScheduleAll(
	ctx context.Context, sink string, maxBacklog int64, all []Scheduled,
) (added, processed int, err error) {
	if len(all) == 0 {
		return 0, 0, nil
	}
	args := make([]any, 1, 1+3*len(all))
	args[0] = maxBacklog
	for _, d := range all {
		args = append(args, d.ID, d.Body, d.OrderingKey)
	}
	reply, err := rt.runReplicated(ctx, scheduleAllScript, rt.retryKeys(sink), args...).Int64Slice()
	if err == nil && len(reply) != 2 {
		err = errReply
	}
	if err != nil {
		return 0, 0, redisconn.WrapError("schedule deliveries", err)
	}
	return int(reply[0]), int(reply[1]), nil
}

// CountScheduled returns how many of the IDs are scheduled.
func (rt *Retries) CountScheduled(ctx context.Context, sink string, ids []string) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	dueTimes, err := rt.client.ZMScore(ctx, RetryKey(rt.keys, sink), ids...).Result()
	if err != nil {
		return 0, redisconn.WrapError("count scheduled deliveries", err)
	}
	return len(slices.DeleteFunc(dueTimes, func(due float64) bool { return due == 0 })), nil
}

// Reschedule ends a claim and makes its delivery due after wait. An empty body keeps the stored record. If the claim
// was lost, Reschedule changes nothing and returns false.
func (rt *Retries) Reschedule(ctx context.Context, c Claim, body string, wait time.Duration) (bool, error) {
	n, err := rescheduleScript.Run(ctx, rt.client, rt.retryKeys(c.Sink),
		c.ID, c.LeaseEnd, wait.Milliseconds(), body).Int()
	if err != nil {
		return false, redisconn.WrapError("reschedule delivery", err)
	}
	return n == 1, nil
}

// Split replaces a claimed delivery of an unordered sink by parts of it, which are due at once. If the claim was lost, Split
// changes nothing and returns false.
func (rt *Retries) Split(ctx context.Context, c Claim, parts []Scheduled) (bool, error) {
	args := []any{c.ID, c.LeaseEnd}
	for _, p := range parts {
		args = append(args, p.ID, p.Body)
	}
	n, err := splitScript.Run(ctx, rt.client, rt.retryKeys(c.Sink), args...).Int()
	if err != nil {
		return false, redisconn.WrapError("split delivery", err)
	}
	return n == 1, nil
}

// Complete removes a delivered delivery, even if its claim was lost, and ends the sink's failures. It reports whether
// the next delivery with its ordering key became due.
func (rt *Retries) Complete(ctx context.Context, c Claim) (nextDue bool, err error) {
	n, err := completeScript.Run(ctx, rt.client, rt.retryKeys(c.Sink, FailureStartKey(rt.keys, c.Sink)), c.ID).Int()
	if err != nil {
		return false, redisconn.WrapError("remove delivered delivery", err)
	}
	return n == 1, nil
}

// makeDuePage is the number of scheduled deliveries that one script checks.
const makeDuePage = 1000

// MakeDue makes all scheduled deliveries of a sink due at once and returns how many are due. Claimed deliveries stay
// unchanged, as do deliveries that wait for another one with their ordering key. After an error, earlier pages stay
// done, and a repetition is safe.
func (rt *Retries) MakeDue(ctx context.Context, sink string) (int, error) {
	total := 0
	for from := ""; ; {
		start := time.Now()
		reply, err := makeDueScript.Run(ctx, rt.client, rt.retryKeys(sink), from, makeDuePage).Slice()
		if err != nil {
			return total, redisconn.WrapError("make deliveries due", err)
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
		if n > 0 && total == int(n) || next == "" { // the first deliveries are due, or the last
			if err := rt.signalChange(ctx); err != nil {
				return total, err
			}
		}
		if next == "" {
			return total, nil
		}
		from = next
		if err := Yield(ctx, time.Since(start)); err != nil {
			return total, err
		}
	}
}

// CheckBytes returns [ErrFull] if the scheduled deliveries of a sink have reached maxBytes. 0 means no limit.
func (d *db) CheckBytes(ctx context.Context, sink string, maxBytes int64) error {
	if maxBytes == 0 {
		return nil
	}
	sizes, err := redisconn.KeySizes(ctx, d.client, []string{RecordsKey(d.keys, sink)})
	if err == nil && sizes[0] >= maxBytes {
		err = ErrFull
	}
	return err
}

// Sizes returns the memory of the scheduled deliveries of each sink, in bytes.
func (rt *Retries) Sizes(ctx context.Context, sinks []string) ([]int64, error) {
	keys := make([]string, len(sinks))
	for i, sink := range sinks {
		keys[i] = RecordsKey(rt.keys, sink)
	}
	return redisconn.KeySizes(ctx, rt.client, keys)
}
