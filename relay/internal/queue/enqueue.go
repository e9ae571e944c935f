package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// SinkMatch is a log entry with the sinks that match it, as indexes of [EnqueueRequest.Sinks].
type SinkMatch struct {
	ID    string
	Sinks []int
}

// EnqueueRequest advances a position in a partition's log and copies matched entries to the queues of sinks.
type EnqueueRequest struct {
	Partition int
	// CatchUpSink is "" for the dispatcher, or the name of a sink that catches up.
	CatchUpSink string
	// From is the position that the caller expects. To is the new position.
	From, To string
	// Generation is [DispatchState.Generation]. 0 is not checked, which is safe only if the set of sinks never changes.
	Generation int64
	// EntriesCovered is the number of log entries after From up to and including To, matched or not. If it is 0, the
	// lag becomes unknown.
	EntriesCovered int
	// Sinks are the sinks that Matches refer to.
	Sinks []string
	// Matches are in log order.
	Matches []SinkMatch
	// IgnoresMemoryLimit copies entries even if the memory of Redis is full.
	IgnoresMemoryLimit bool
}

// EnqueueResult is the result of an [EnqueueRequest].
type EnqueueResult struct {
	// Committed is false if position or generation were not what the caller expected. Nothing was changed then.
	Committed bool
	// Position and Generation are the current values.
	Position   string
	Generation int64
	// CaughtUp means that the dispatcher serves CatchUpSink from now on.
	CaughtUp bool
	// Lengths are the lengths of the queues, 0 for a sink without a match.
	Lengths []int64
	// Trimmed is the number of matched entries that the log no longer had.
	Trimmed int
}

// Enqueue copies the matched entries to the queues under their own IDs and advances the position, in one step. It may
// be repeated after any failure and from any node, and enqueues nothing twice.
func (s *Store) Enqueue(ctx context.Context, r EnqueueRequest) (EnqueueResult, error) {
	keys := []string{
		eventlog.Key(s.keys, r.Partition), eventlog.DispatchPositionKey(s.keys, r.Partition),
		SinkPositionsKey(s.keys, r.Partition),
	}
	// Only queues that receive an entry are sent to Redis, so a thousand sinks without a match cost nothing.
	index := make([]int, len(r.Sinks)) // of the queue in the command, from 1
	var used []int
	matches := make([]any, 0, 3*len(r.Matches))
	for _, m := range r.Matches {
		matches = append(matches, m.ID, len(m.Sinks))
		for _, sink := range m.Sinks {
			if sink < 0 || sink >= len(r.Sinks) {
				return EnqueueResult{}, fmt.Errorf("enqueue: match %s has sink %d of %d", m.ID, sink, len(r.Sinks))
			}
			if index[sink] == 0 {
				used = append(used, sink)
				index[sink] = len(used)
				keys = append(keys, Key(s.keys, r.Sinks[sink], r.Partition))
			}
			matches = append(matches, index[sink])
		}
	}
	generation := ""
	if r.Generation != 0 {
		generation = strconv.FormatInt(r.Generation, 10)
	}
	ignoresLimit := 0
	if r.IgnoresMemoryLimit {
		ignoresLimit = 1
	}
	args := make([]any, 0, 6+len(matches))
	args = append(args, r.CatchUpSink, r.From, r.To, generation, r.EntriesCovered, ignoresLimit)
	reply, err := enqueueScript.Run(ctx, s.conn.Commands(), keys, append(args, matches...)...).Slice()
	if err != nil {
		return EnqueueResult{}, redisconn.WrapError("enqueue", err)
	}
	return parseEnqueueReply(reply, len(r.Sinks), used)
}

func parseEnqueueReply(reply []any, sinks int, used []int) (EnqueueResult, error) {
	r := EnqueueResult{Lengths: make([]int64, sinks)}
	if len(reply) < 5 {
		return r, redisconn.ErrUnexpectedReply
	}
	committed, ok1 := reply[0].(int64)
	position, ok2 := reply[1].(string)
	text, ok3 := reply[2].(string)
	trimmed, ok4 := reply[3].(int64)
	caughtUp, ok5 := reply[4].(int64)
	generation, err := strconv.ParseInt(text, 10, 64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || err != nil {
		return r, redisconn.ErrUnexpectedReply
	}
	r.Committed, r.Position, r.Generation = committed == 1, strings.TrimPrefix(position, "+"), generation
	r.Trimmed, r.CaughtUp = int(trimmed), caughtUp == 1
	for i, sink := range used {
		if 5+i < len(reply) {
			r.Lengths[sink], _ = reply[5+i].(int64)
		}
	}
	return r, nil
}
