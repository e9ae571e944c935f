package admission

import (
	"context"
	"sync"
)

// backlog stops fresh deliveries while too many are scheduled.
type backlog struct {
	limit, maxBytes int64 // 0 means no limit

	mu    sync.Mutex
	depth int64
	bytes int64
	freed chan struct{} // closed and replaced when it is no longer full
}

func newBacklog(limit, maxBytes int64) *backlog {
	return &backlog{limit: limit, maxBytes: maxBytes, freed: make(chan struct{})}
}

// setDepth reports whether the backlog became full. addedBytes is the size of a delivery that was scheduled since the last setBytes.
func (b *backlog) setDepth(depth, addedBytes int64) (becameFull bool) {
	return b.updateSize(func() {
		b.depth = depth
		if b.maxBytes > 0 {
			b.bytes += addedBytes
		}
	})
}

func (b *backlog) setBytes(bytes int64) { b.updateSize(func() { b.bytes = bytes }) }

func (b *backlog) removeOne() { b.updateSize(func() { b.depth = max(0, b.depth-1) }) }

func (b *backlog) updateSize(change func()) (becameFull bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasFull := b.isFullLocked()
	change()
	isFull := b.isFullLocked()
	if wasFull && !isFull {
		close(b.freed)
		b.freed = make(chan struct{})
	}
	return isFull && !wasFull
}

func (b *backlog) size() (depth, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.depth, b.bytes
}

func (b *backlog) isFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isFullLocked()
}

func (b *backlog) isFullLocked() bool {
	return b.limit > 0 && b.depth >= b.limit || b.maxBytes > 0 && b.bytes >= b.maxBytes
}

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
