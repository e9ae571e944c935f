package backbone

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	claimCount          = 100 // entries of one stream in one XAUTOCLAIM
	reclaimPipelineSize = 128 // commands in one pipeline of the keeper
)

// reclaimer shows life for the entries in memory, and takes over those of consumers that show none.
type reclaimer struct {
	s           *Subscriber
	pendingRead chan struct{} // a stream's own pending entries have all been read
}

func newReclaimer(s *Subscriber) *reclaimer {
	return &reclaimer{s: s, pendingRead: make(chan struct{}, 1)}
}

func (k *reclaimer) wake() { trySignal(k.pendingRead) }

func (k *reclaimer) run() {
	defer k.s.wg.Done()
	beat := time.NewTicker(k.s.cfg.ClaimIdle / 3)
	defer beat.Stop()
	look := time.NewTicker(k.s.cfg.ClaimInterval)
	defer look.Stop()
	for {
		select {
		case <-k.s.ctx.Done():
			return
		case <-beat.C:
			k.heartbeat()
		case <-look.C:
			k.reclaim()
		case <-k.pendingRead:
			k.reclaim()
		}
	}
}

// heartbeat resets the idle time of entries in memory. It also covers topics that nobody reads any more.
func (k *reclaimer) heartbeat() {
	k.s.mu.Lock()
	sources := make([]*streamState, 0, len(k.s.sources))
	for _, src := range k.s.sources {
		sources = append(sources, src)
	}
	k.s.mu.Unlock()
	cfg := &k.s.cfg
	before := time.Now().Add(-cfg.ClaimIdle / 6)
	pipe := cfg.Commands.Pipeline()
	for _, src := range sources {
		ids := src.heldBefore(before)
		for len(ids) > 0 {
			n := min(len(ids), topicBufferSize)
			pipe.XClaimJustID(k.s.ctx, &redis.XClaimArgs{
				Stream: src.stream, Group: cfg.Group, Consumer: cfg.Consumer, Messages: ids[:n],
			})
			ids = ids[n:]
			if pipe.Len() >= reclaimPipelineSize {
				k.runPipeline(pipe)
			}
		}
	}
	k.runPipeline(pipe)
}

func (k *reclaimer) runPipeline(pipe redis.Pipeliner) {
	if pipe.Len() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(k.s.ctx, k.s.cfg.ClaimIdle/3)
	defer cancel()
	// The reader reports an absent Redis; a group that is gone holds nothing to show life for.
	if _, err := pipe.Exec(ctx); err != nil {
		k.s.cfg.Log.Debug("holding entries failed", "error", err)
	}
}

// reclaim takes over abandoned entries of every topic with room, until there are none or the topic is full.
func (k *reclaimer) reclaim() {
	due := k.dueSources(k.s.activeSources(), time.Now())
	for len(due) > 0 && k.s.ctx.Err() == nil {
		n := min(len(due), reclaimPipelineSize)
		more := k.reclaimFrom(due[:n])
		due = append(due[n:], k.dueSources(more, time.Now())...)
	}
}

func (k *reclaimer) dueSources(sources []*streamState, now time.Time) []*streamState {
	due := make([]*streamState, 0, len(sources))
	for _, src := range sources {
		// Own pending entries come first, and with them those that this node gave back.
		if !src.reclaimAt.After(now) && src.position() == newEntries && src.topic.hasRoom() {
			due = append(due, src)
		}
	}
	return due
}

// reclaimFrom asks once for each source and returns those that have more.
func (k *reclaimer) reclaimFrom(sources []*streamState) []*streamState {
	cfg := &k.s.cfg
	ctx, cancel := context.WithTimeout(k.s.ctx, flushTimeout)
	defer cancel()
	pipe := cfg.Commands.Pipeline()
	cmds := make([]*redis.XAutoClaimWithDeletedCmd, len(sources))
	for i, src := range sources {
		if src.cursor == "" {
			src.cursor = "0-0"
		}
		cmds[i] = pipe.XAutoClaimWithDeleted(ctx, &redis.XAutoClaimArgs{
			Stream: src.stream, Group: cfg.Group, Consumer: cfg.Consumer,
			MinIdle: cfg.ClaimIdle, Start: src.cursor, Count: claimCount,
		})
	}
	_, _ = pipe.Exec(ctx)
	var more []*streamState
	for i, src := range sources {
		msgs, next, _, err := cmds[i].Result()
		if err != nil {
			// NOGROUP: the reader makes the group. Anything else: the reader reports it.
			src.cursor, src.reclaimAt = "", time.Now().Add(cfg.ClaimInterval/2)
			continue
		}
		n := k.s.enqueueEntries(src, storedFrom(msgs), true, src.releases())
		if n > 0 {
			cfg.Log.Info("took over entries of another consumer", "stream", src.stream, "entries", n)
		}
		src.cursor = next
		if next == "0-0" || next == "" {
			src.cursor, src.reclaimAt = "", time.Now().Add(cfg.ClaimInterval/2)
			continue
		}
		more = append(more, src)
	}
	return more
}
