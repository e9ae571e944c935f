package admission

import (
	"context"
	"sync"
)

// backlog stops fresh deliveries while too many are scheduled.
type backlog struct {
	limit int64 // 0 means no limit

	mu    sync.Mutex
	depth int64
	freed chan struct{} // closed and replaced when the depth falls below the limit
}

func newBacklog(limit int64) *backlog { return &backlog{limit: limit, freed: make(chan struct{})} }

// setDepth reports whether the backlog became full.
func (b *backlog) setDepth(depth int64) (becameFull bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.setDepthLocked(depth)
}

func (b *backlog) setDepthLocked(depth int64) (becameFull bool) {
	wasFull := b.isFullLocked()
	b.depth = depth
	isFull := b.isFullLocked()
	if wasFull && !isFull {
		close(b.freed)
		b.freed = make(chan struct{})
	}
	return isFull && !wasFull
}

func (b *backlog) removeOne() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setDepthLocked(max(0, b.depth-1))
}

func (b *backlog) getDepth() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.depth
}

func (b *backlog) isFull() bool {
	if b.limit <= 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isFullLocked()
}

func (b *backlog) isFullLocked() bool { return b.limit > 0 && b.depth >= b.limit }

// wait returns when there may be space, when stop is closed, or with the error of ctx.
func (b *backlog) wait(ctx context.Context, stop <-chan struct{}) error {
	b.mu.Lock()
	isFull, freed := b.isFullLocked(), b.freed
	b.mu.Unlock()
	if !isFull {
		return nil
	}
	select {
	case <-freed:
	case <-stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
