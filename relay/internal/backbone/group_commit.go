package backbone

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// maxConcurrentCommits bounds the writes of single notifications that are on their way at once: a lone one never waits, and
	// those that arrive while both are under way share the next, which is what lets a node publish thousands a second.
	maxConcurrentCommits = 2
	// maxCommit bounds one shared write.
	maxCommit = 256
	// commitTime is how long a shared write may take; it serves many callers and so follows none of their contexts.
	commitTime = 10 * time.Second
)

// entry is one notification on its way into a log.
type entry struct {
	log  string
	n    *relay.Notification
	done chan error
}

// groupCommit gathers the single notifications of concurrent callers into shared writes.
type groupCommit struct {
	flush func(context.Context, []entry)

	mu       sync.Mutex
	waiting  []entry
	inFlight int
}

// commit returns when e is stored, with why it was not, or with ctx's error while that is still open. What has not been sent
// by then never is. A caller who need not wait for others writes himself, and then does not look at ctx: the stack of a
// goroutine that lives for one write would have to grow every time.
func (c *groupCommit) commit(ctx context.Context, e entry) error {
	e.done = make(chan error, 1)
	c.mu.Lock()
	if c.inFlight < maxConcurrentCommits {
		c.inFlight++
		c.mu.Unlock()
		c.write(context.WithoutCancel(ctx), []entry{e})
		c.mu.Lock()
		if len(c.waiting) > 0 {
			go c.writeLoop(context.WithoutCancel(ctx))
		} else {
			c.inFlight--
		}
		c.mu.Unlock()
		return <-e.done
	}
	c.waiting = append(c.waiting, e)
	c.mu.Unlock()
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
	}
	// Nobody waits for it any more: unless it is on its way it must not be stored.
	c.mu.Lock()
	c.waiting = slices.DeleteFunc(c.waiting, func(w entry) bool { return w.done == e.done })
	c.mu.Unlock()
	return ctx.Err()
}

// writeLoop writes until nothing waits.
func (c *groupCommit) writeLoop(ctx context.Context) {
	for {
		c.mu.Lock()
		n := min(len(c.waiting), maxCommit)
		if n == 0 {
			c.inFlight--
			c.mu.Unlock()
			return
		}
		batch := c.waiting[:n:n]
		c.waiting = c.waiting[n:]
		if len(c.waiting) == 0 {
			c.waiting = nil
		}
		c.mu.Unlock()
		c.write(ctx, batch)
	}
}

func (c *groupCommit) write(ctx context.Context, batch []entry) {
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	c.flush(ctx, batch)
}

// flushBatch writes independent notifications in one go and tells each caller its own outcome.
func (b *Store) flushBatch(ctx context.Context, batch []entry) {
	if b.minReplicas == 0 {
		for i, err := range writeSingles(ctx, b.client, batch) {
			batch[i].done <- err
		}
		return
	}
	// Logs may lie on several servers, and one connection waits for the replicas of one.
	byLog := make(map[string][]entry)
	for _, e := range batch {
		byLog[e.log] = append(byLog[e.log], e)
	}
	var all sync.WaitGroup
	for log, list := range byLog {
		all.Go(func() {
			errs := make([]error, len(list))
			err := b.withReplication(ctx, log, func(w commandRunner) error {
				errs = writeSingles(ctx, w, list)
				if slices.Contains(errs, nil) {
					return nil
				}
				return errs[0]
			})
			for i := range list {
				list[i].done <- cmp.Or(errs[i], err)
			}
		})
	}
	all.Wait()
}

// writeSingles returns the outcome of each.
func writeSingles(ctx context.Context, w commandRunner, batch []entry) []error {
	errs := make([]error, len(batch))
	if len(batch) == 1 {
		errs[0] = w.Process(ctx, redis.NewCmd(ctx, addArgs(batch[0].log, batch[0].n)...))
		return errs
	}
	cmds := make([]*redis.Cmd, len(batch))
	_, err := w.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, e := range batch {
			cmds[i] = pipe.Do(ctx, addArgs(e.log, e.n)...)
		}
		return nil
	})
	for i := range batch {
		errs[i] = cmds[i].Err()
		// The pipeline's own error is the first of its commands' unless it never got to run.
		if errs[i] == nil && err != nil && cmds[i].Val() == nil {
			errs[i] = err
		}
	}
	return errs
}
