package backbone

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// backoff doubles from 50 ms to 1 s, with a quarter of jitter. Its zero value is ready.
type backoff struct{ d time.Duration }

func (b *backoff) next() time.Duration {
	b.d = min(max(2*b.d, 50*time.Millisecond), time.Second)
	return b.d - rand.N(b.d/4)
}

func (b *backoff) reset() { b.d = 0 }

// isTransient says whether the same command may succeed later: the server is away, loading, or not in charge.
func isTransient(err error) bool {
	var fromRedis redis.Error
	if !errors.As(err, &fromRedis) {
		return true
	}
	return isTransientReply(fromRedis.Error())
}

// recoverFrom does what a failed read or group creation asks for, and returns how long to wait before the next.
func (r *slotReader) recoverFrom(plan []streamRead, err error, wait *backoff) time.Duration {
	pause := wait.next()
	switch {
	case redis.HasErrorPrefix(err, "NOGROUP"), redis.HasErrorPrefix(err, "UNBLOCKED"), redis.HasErrorPrefix(err, "WRONGTYPE"):
		// The answer does not name every stream concerned: ask for each.
		sources := make([]*streamState, len(plan))
		for i, p := range plan {
			sources[i] = p.src
		}
		if err := r.createGroups(sources); err == nil {
			return time.Millisecond
		}
		return pause
	}
	if wait.d == 50*time.Millisecond || !isTransient(err) {
		r.s.cfg.Log.Warn("reading queues failed, trying again", "error", err, "streams", len(plan))
	}
	if cluster, ok := r.s.cfg.Readers.(*redis.ClusterClient); ok {
		cluster.ReloadState(r.s.ctx) // the slot may have moved
	}
	r.reconnect()
	return pause
}

// reconnect gives up the connection. The answer may have been lost after Redis had handed the entries over, so they are
// read again as pending.
func (r *slotReader) reconnect() {
	r.disconnect()
	r.prefetched = nil
	r.mu.Lock()
	sources := r.sources
	r.mu.Unlock()
	for _, src := range sources {
		src.restartPending()
	}
}

// createGroups creates what is missing, and reports a gap where a group existed before. It returns only errors that
// concern all streams.
func (r *slotReader) createGroups(sources []*streamState) error {
	cfg := &r.s.cfg
	ctx, cancel := context.WithTimeout(r.s.ctx, flushTimeout)
	defer cancel()
	pipe := cfg.Commands.Pipeline()
	cmds := make([]*redis.StatusCmd, len(sources))
	for i, src := range sources {
		cmds[i] = pipe.XGroupCreateMkStream(ctx, src.stream, cfg.Group, src.groupStart(cfg.KeepAcked))
	}
	_, _ = pipe.Exec(ctx)
	for i, src := range sources {
		switch err := cmds[i].Err(); {
		case err == nil:
			if src.groupExists {
				cfg.Log.Warn("a queue had vanished and was made anew, entries may be missing", "stream", src.stream)
				if cfg.OnGap != nil {
					cfg.OnGap(src.stream)
				}
			}
			src.groupExists = true
		case redis.HasErrorPrefix(err, "BUSYGROUP"):
			src.groupExists = true
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			cfg.Log.Error("a queue's key holds something else than a stream", "stream", src.stream, "retry_in", wrongTypeRetry)
			src.retryAt = time.Now().Add(wrongTypeRetry)
		default:
			return err
		}
	}
	return nil
}

// groupStart is where a group begins that has to be made. What is in a queue is not acked, so all of it is due, and
// what is in memory is recognised; a stream that keeps acked entries goes on where it was.
func (src *streamState) groupStart(keepAcked bool) string {
	if !keepAcked {
		return pendingFromStart
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	return src.last
}
