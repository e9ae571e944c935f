package subscriber

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func newBackoff() backoff.Backoff {
	return backoff.Backoff{Min: redisconn.RetryMin, Max: redisconn.RetryMax}
}

// recoverFrom handles the error of a read or of the creation of groups. It returns the time to wait before the next
// attempt.
func (r *slotReader) recoverFrom(list []streamRead, err error, retry *backoff.Backoff) time.Duration {
	isFirst := retry.IsReset()
	delay := retry.Next()
	switch {
	case redis.HasErrorPrefix(err, "NOGROUP"), redis.HasErrorPrefix(err, "UNBLOCKED"),
		redis.HasErrorPrefix(err, "WRONGTYPE"):
		// The error does not name all affected streams, so check each of them.
		streams := make([]*streamState, len(list))
		for i, p := range list {
			streams[i] = p.st
		}
		if err := r.createGroups(streams); err == nil {
			return time.Millisecond
		}
		return delay
	}
	if isFirst || !redisconn.IsTransient(err) {
		r.s.cfg.Log.Warn("reading queues failed", "error", redisconn.WrapError("read queues", err), "stream_count", len(list))
	}
	redisconn.ReloadSlots(r.s.ctx, r.s.cfg.Readers) // the slot may have moved
	r.resetSession()
	return delay
}

// resetSession closes the connection. Redis may have assigned entries in a reply that was lost, so all pending
// entries are read again.
func (r *slotReader) resetSession() {
	r.closeSession()
	r.prefetched = readPlan{}
	r.mu.Lock()
	streams := r.streams
	r.mu.Unlock()
	for _, st := range streams {
		st.restartPending()
	}
}

// createGroups creates missing groups. If a group existed before, it reports a gap. A stream whose group cannot be created
// is tried again later. It returns only errors that concern all streams.
func (r *slotReader) createGroups(streams []*streamState) error {
	cfg := &r.s.cfg
	ctx, cancel := context.WithTimeout(r.s.ctx, flushTimeout)
	defer cancel()
	missing, err := r.findMissingGroups(ctx, streams)
	if err != nil || len(missing) == 0 {
		return err
	}
	pipe := cfg.Commands.Pipeline()
	cmds := make([]*redis.StatusCmd, len(missing))
	for i, st := range missing {
		cmds[i] = pipe.XGroupCreateMkStream(ctx, st.name, cfg.Group, st.groupStart(cfg.KeepAcked))
	}
	_, _ = pipe.Exec(ctx)
	for i, st := range missing {
		switch err := cmds[i].Err(); {
		case err == nil:
			if st.groupExists {
				cfg.Log.Warn("a missing queue was created again, entries may be lost", "redis_key", st.name)
				if cfg.OnGap != nil {
					cfg.OnGap(st.name)
				}
			}
			st.groupExists, st.needsGroup = true, false
		case redis.HasErrorPrefix(err, "BUSYGROUP"):
			st.groupExists, st.needsGroup = true, false
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			cfg.Log.Error("the key of a queue is not a stream", "redis_key", st.name, "retry_in", wrongTypeRetry.String())
			st.retryAt = time.Now().Add(wrongTypeRetry)
		case redisconn.IsOutOfMemory(err):
			st.needsGroup, st.retryAt = true, time.Now().Add(outOfMemoryRetry)
		default:
			return err
		}
	}
	return nil
}

// findMissingGroups returns the streams without a group. XGROUP CREATE cannot find out, because a full Redis rejects it.
func (r *slotReader) findMissingGroups(ctx context.Context, streams []*streamState) ([]*streamState, error) {
	cfg := &r.s.cfg
	pipe := cfg.Commands.Pipeline()
	cmds := make([]*redis.XInfoGroupsCmd, len(streams))
	for i, st := range streams {
		cmds[i] = pipe.XInfoGroups(ctx, st.name)
	}
	_, _ = pipe.Exec(ctx)
	var missing []*streamState
	for i, st := range streams {
		groups, err := cmds[i].Result()
		if err != nil && redisconn.IsUnavailable(err) {
			return nil, err
		}
		// Other errors mean that there is no stream. Creating the group shows whether there is another key.
		if err == nil && slices.ContainsFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == cfg.Group }) {
			st.groupExists, st.needsGroup = true, false
			continue
		}
		missing = append(missing, st)
	}
	return missing, nil
}

// groupStart returns the position at which a new group begins. A queue contains only entries that are not acked, so
// the group begins at the start, and entries in memory are recognized. A stream that keeps acked entries continues
// after the last entry that was read.
func (st *streamState) groupStart(keepAcked bool) string {
	if !keepAcked {
		return pendingFromStart
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.last
}
