package eventlog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// maxConcurrentCommits is the maximum number of writes in flight to a server, or in a cluster to a partition. A single
	// notification is written at once. While both writes are in flight, all others wait and share the next one, so a node can
	// publish thousands per second.
	maxConcurrentCommits = 2
	// maxCommit is the maximum number of notifications in a shared write.
	maxCommit = 256
	// commitTimeout limits a shared write. It serves many callers and therefore ignores their contexts.
	commitTimeout = 10 * time.Second
)

// entry is a notification to append.
type entry struct {
	log       string
	n         *relay.Notification
	publisher string
	done      chan error
}

// groupCommit combines the single notifications of concurrent callers into shared writes.
type groupCommit struct {
	flush func(context.Context, []entry)

	mu       sync.Mutex
	waiting  []entry
	inFlight int
}

// commitEntry returns when e is stored or has failed. If ctx ends before e is sent, e is never sent and commitEntry
// returns ctx's error. A caller that does not have to wait writes in its own goroutine and ignores ctx, because a
// goroutine for one write would have to grow its stack each time.
func (c *groupCommit) commitEntry(ctx context.Context, e entry) error {
	e.done = make(chan error, 1)
	c.mu.Lock()
	if c.inFlight < maxConcurrentCommits {
		c.inFlight++
		c.mu.Unlock()
		c.flush(context.WithoutCancel(ctx), []entry{e})
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
	err, late := await.Value(ctx, e.done)
	if late == nil {
		return err
	}
	// The caller reports a failure, so an entry that is not in flight must not be stored later.
	c.mu.Lock()
	c.waiting = slices.DeleteFunc(c.waiting, func(w entry) bool { return w.done == e.done })
	c.mu.Unlock()
	err, late = await.Value(ctx, e.done) // it may have been stored before it was removed
	return cmp.Or(late, err)
}

// writeLoop writes until no entry is waiting.
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
		c.flush(ctx, batch)
	}
}

// flushBatch writes independent notifications together and sends each caller its own result. All logs of a batch are on one
// server.
func (l *Log) flushBatch(ctx context.Context, batch []entry) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	var errs []error // nil if nothing was sent
	err := l.conn.WithReplication(ctx, batch[0].log, func(r redisconn.Runner) error {
		errs = writeSingles(ctx, r, batch)
		if slices.Contains(errs, nil) {
			return nil
		}
		return errs[0]
	})
	for i, e := range batch {
		if errs != nil {
			e.done <- cmp.Or(errs[i], err)
		} else {
			e.done <- err
		}
	}
}

// writeSingles returns the result of each entry.
func writeSingles(ctx context.Context, r redisconn.Runner, batch []entry) []error {
	errs := make([]error, len(batch))
	if len(batch) == 1 {
		errs[0] = r.Process(ctx, redis.NewCmd(ctx, addArgs(batch[0].log, batch[0].n, batch[0].publisher)...))
		return errs
	}
	cmds := make([]*redis.Cmd, len(batch))
	_, err := r.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, e := range batch {
			cmds[i] = pipe.Do(ctx, addArgs(e.log, e.n, e.publisher)...)
		}
		return nil
	})
	for i := range batch {
		errs[i] = cmds[i].Err()
		// The error of the pipeline is the first error of its commands, unless the pipeline was not sent.
		if errs[i] == nil && err != nil && cmds[i].Val() == nil {
			errs[i] = err
		}
	}
	return errs
}
