package backbone

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	nodeTTL = 10 * time.Second
	// maxNodes bounds the search for a free number.
	maxNodes = 1024
)

// Node is this process among those that share a Redis.
type Node struct {
	// Number is the lowest that was free, from 0, so that a restarted process tends to find its own again.
	Number int
	// Name is "node-<Number>": a stable name for consumers, which Redis never forgets by itself.
	Name string

	// Lost is closed if the number was lost: Redis was away for longer than its lease, and another process has taken
	// it. Whoever uses Name should stop then and join anew.
	Lost <-chan struct{}

	stop context.CancelFunc
	done chan struct{}
	once sync.Once
}

// JoinNode takes the lowest free node number and keeps it until ctx ends or [Node.Leave]. A killed process' number is
// free again after ten seconds. While Redis is away JoinNode waits.
func (b *Store) JoinNode(ctx context.Context) (*Node, error) {
	value := b.bootID + randomHex()
	wait := retryMin
	for {
		for n := range maxNodes {
			l := &Lease{b: b, key: b.keys.Node(n), name: fmt.Sprintf("node:%d", n), ttl: nodeTTL}
			held, err := l.acquire(ctx, value)
			if err != nil {
				if !errors.Is(err, ErrUnavailable) {
					return nil, err
				}
				b.log.WarnContext(ctx, "cannot take a node number yet", "error", err)
				break
			}
			if held {
				return b.keepNode(ctx, l, value, n), nil
			}
		}
		if !relay.Sleep(ctx, wait) {
			return nil, fmt.Errorf("join as a node: %w", ctx.Err())
		}
		wait = min(2*wait, retryMax)
	}
}

func (b *Store) keepNode(ctx context.Context, l *Lease, value string, number int) *Node {
	ctx, stop := context.WithCancel(ctx)
	lost := make(chan struct{})
	n := &Node{Number: number, Name: fmt.Sprintf("node-%d", number), Lost: lost, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		for wait := l.renewInterval(nil); relay.Sleep(ctx, wait); {
			held, err := l.acquire(ctx, value)
			wait = l.renewInterval(err)
			if err != nil && ctx.Err() == nil {
				// Redis may be away for long without anybody else getting the number.
				b.log.WarnContext(ctx, "cannot renew the node number", "node", number, "error", err)
			}
			if err == nil && !held {
				b.log.ErrorContext(ctx, "the node number was lost to another process", "node", number)
				close(lost)
				return
			}
		}
		l.release(ctx, value)
	}()
	return n
}

// Leave gives the number back. It may be called twice.
func (n *Node) Leave() {
	n.once.Do(n.stop)
	<-n.done
}
