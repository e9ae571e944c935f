package store

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/backoff"
)

const (
	persistTimeout  = 30 * time.Second
	minPersistDelay = 100 * time.Millisecond
	maxPersistDelay = 2 * time.Second

	// CommandTimeout limits one command of Redis.
	CommandTimeout = 2 * time.Second
)

// Persist repeats a write for up to 30 seconds, because the alternative is that a destination gets a delivery again. It
// calls write at least once, even if ctx has ended, so the outcome of an attempt is not lost.
func Persist(ctx context.Context, write func(context.Context) error) error {
	repeating, cancel := context.WithTimeout(ctx, persistTimeout)
	defer cancel()
	retry := backoff.Backoff{Min: minPersistDelay, Max: maxPersistDelay}
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CommandTimeout)
			defer cancel()
			return write(ctx)
		}()
		if err == nil || !retry.Sleep(repeating) {
			return err
		}
	}
}
