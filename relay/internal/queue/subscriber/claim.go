package subscriber

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
)

const (
	claimCount          = 100 // entries of one stream in one XAUTOCLAIM
	reclaimPipelineSize = 128 // commands in one pipeline
)

// reclaimer keeps the entries in memory alive, and claims the entries of consumers that do not.
type reclaimer struct {
	s           *Subscriber
	pendingRead chan struct{} // all pending entries of a stream have been read
}

func newReclaimer(s *Subscriber) *reclaimer {
	return &reclaimer{s: s, pendingRead: make(chan struct{}, 1)}
}

func (r *reclaimer) wakeUp() { trySignal(r.pendingRead) }

func (r *reclaimer) run() {
	defer r.s.wg.Done()
	heartbeats := time.NewTicker(r.s.cfg.ClaimIdle / 3)
	defer heartbeats.Stop()
	searches := time.NewTicker(r.s.cfg.ClaimInterval)
	defer searches.Stop()
	for {
		select {
		case <-r.s.ctx.Done():
			return
		case <-heartbeats.C:
			r.sendHeartbeats()
		case <-searches.C:
			r.reclaimIdle()
		case <-r.pendingRead:
			r.reclaimIdle()
		}
	}
}

// sendHeartbeats resets the idle time of entries in memory, also of topics that are no longer read.
func (r *reclaimer) sendHeartbeats() {
	r.s.mu.Lock()
	streams := slices.Collect(maps.Values(r.s.streams))
	r.s.mu.Unlock()
	cfg := &r.s.cfg
	before := time.Now().Add(-cfg.ClaimIdle / 6)
	pipe := cfg.Commands.Pipeline()
	for _, st := range streams {
		ids := st.heldBefore(before)
		for len(ids) > 0 {
			n := min(len(ids), topicBufferSize)
			pipe.XClaimJustID(r.s.ctx, &redis.XClaimArgs{
				Stream: st.name, Group: cfg.Group, Consumer: cfg.Consumer, Messages: ids[:n],
			})
			ids = ids[n:]
			if pipe.Len() >= reclaimPipelineSize {
				r.runPipeline(pipe)
			}
		}
	}
	r.runPipeline(pipe)
}

func (r *reclaimer) runPipeline(pipe redis.Pipeliner) {
	if pipe.Len() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(r.s.ctx, r.s.cfg.ClaimIdle/3)
	defer cancel()
	// The reader logs an outage of Redis. If the group is missing, there is nothing to keep alive.
	if _, err := pipe.Exec(ctx); err != nil {
		r.s.cfg.Log.Debug("keeping queue entries alive failed", "error", err)
	}
}

// reclaimIdle claims idle entries of all topics with space, until none are left or the topics are full.
func (r *reclaimer) reclaimIdle() {
	due := r.dueStreams(r.s.activeStreams(), time.Now())
	for len(due) > 0 && r.s.ctx.Err() == nil {
		n := min(len(due), reclaimPipelineSize)
		more := r.reclaimFrom(due[:n])
		due = append(due[n:], r.dueStreams(more, time.Now())...)
	}
}

func (r *reclaimer) dueStreams(streams []*streamState, now time.Time) []*streamState {
	due := make([]*streamState, 0, len(streams))
	for _, st := range streams {
		releases := st.countReleases()
		// This consumer's pending entries come first, including the ones it released.
		if !st.reclaimAt.After(now) && st.readPosition() == newEntries && st.topic.hasSpace() {
			st.releases = releases
			due = append(due, st)
		}
	}
	return due
}

// reclaimFrom sends one XAUTOCLAIM for each stream and returns the streams that have more.
func (r *reclaimer) reclaimFrom(streams []*streamState) []*streamState {
	cfg := &r.s.cfg
	ctx, cancel := context.WithTimeout(r.s.ctx, flushTimeout)
	defer cancel()
	pipe := cfg.Commands.Pipeline()
	cmds := make([]*redis.XAutoClaimJustIDCmd, len(streams))
	for i, st := range streams {
		if st.cursor == "" {
			st.cursor = streamid.Zero
		}
		cmds[i] = pipe.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
			Stream: st.name, Group: cfg.Group, Consumer: cfg.Consumer,
			MinIdle: cfg.ClaimIdle, Start: st.cursor, Count: claimCount,
		})
	}
	_, _ = pipe.Exec(ctx)
	var more []*streamState
	for i, st := range streams {
		ids, next, err := cmds[i].Result()
		if err != nil {
			// After NOGROUP, the reader creates the group. It logs all other errors.
			st.cursor, st.reclaimAt = "", time.Now().Add(cfg.ClaimInterval/2)
			continue
		}
		if n := st.countNew(ids); n > 0 {
			// This consumer's own entries are idle as well if they were released during the search.
			if !st.hasReleasedSince(st.releases) {
				cfg.Log.Info("claimed idle queue entries of another consumer", "redis_key", st.name, "entry_count", n)
			}
			st.restartPending() // the reader reads them in order, and not more than memory allows
			st.topic.wakeReaders()
		}
		st.cursor = next
		if next == streamid.Zero || next == "" {
			st.cursor, st.reclaimAt = "", time.Now().Add(cfg.ClaimInterval/2)
			continue
		}
		more = append(more, st)
	}
	return more
}
