package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	nodeTTL = 10 * time.Second
	// maxNodes limits the search for a free number.
	maxNodes = 1024
)

// Node is this process among the processes that share a Redis.
type Node struct {
	// Number is the lowest number that was free, starting at 0. A restarted process usually gets its old number.
	Number int
	// Name is "node-<Number>". Consumers need a stable name, because Redis never deletes them.
	Name string

	// Lost is closed when another process has taken the number, because Redis was unreachable for longer than the
	// lease. Users of Name must then stop and join again.
	Lost <-chan struct{}

	stop context.CancelFunc
	done chan struct{}
	once sync.Once
}

// JoinNode takes the lowest free node number and keeps it until ctx ends or [Node.Leave] is called. The number of a
// killed process is free after ten seconds. JoinNode waits while Redis is unreachable.
func (m *Manager) JoinNode(ctx context.Context) (*Node, error) {
	value := m.newValue()
	retry := backoff.Backoff{Min: redisconn.RetryMin, Max: redisconn.RetryMax}
	for {
		for n := range maxNodes {
			l := &Lease{m: m, key: NodeKey(m.keys, n), name: fmt.Sprintf("node:%d", n), ttl: nodeTTL}
			held, err := l.tryAcquire(ctx, value)
			if err != nil {
				if !errors.Is(err, redisconn.ErrUnavailable) {
					return nil, err
				}
				m.log.WarnContext(ctx, "acquiring a node number failed", "error", err)
				break
			}
			if held {
				return m.keepNode(ctx, l, value, n), nil
			}
		}
		if !retry.Sleep(ctx) {
			return nil, fmt.Errorf("join as a node: %w", ctx.Err())
		}
	}
}

func (m *Manager) keepNode(ctx context.Context, l *Lease, value string, number int) *Node {
	ctx, stop := context.WithCancel(ctx)
	lost, done := make(chan struct{}), make(chan struct{})
	n := &Node{Number: number, Name: nodeName(number), Lost: lost, stop: stop, done: done}
	go func() {
		defer close(done)
		for wait := l.renewInterval(nil); await.Duration(ctx, wait); {
			held, err := l.tryAcquire(ctx, value)
			wait = l.renewInterval(err)
			if err != nil && ctx.Err() == nil {
				// The number remains usable as long as no other process takes it, even during a long outage of Redis.
				m.log.WarnContext(ctx, "renewing the node number failed", "node", number, "error", err)
			}
			if err == nil && !held {
				m.log.ErrorContext(ctx, "another process has taken the node number", "node", number)
				close(lost)
				return
			}
		}
		l.releaseLock(ctx, value)
	}()
	return n
}

// Leave releases the number. It may be called twice.
func (n *Node) Leave() {
	n.once.Do(n.stop)
	<-n.done
}

func nodeName(number int) string { return fmt.Sprintf("node-%d", number) }

// nodesPerSearch is the number of node numbers in one request of [Manager.ListNodes].
const nodesPerSearch = 32

// ListNodes returns the names of all running nodes in the order of their numbers. A killed node is listed for ten more
// seconds. Numbers are assigned from 0 on, so the search ends after 32 free ones in a row.
func (m *Manager) ListNodes(ctx context.Context) ([]string, error) {
	var names []string
	for first := 0; first < maxNodes; first += nodesPerSearch {
		replies := make([]*redis.IntCmd, nodesPerSearch)
		if _, err := m.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range replies {
				replies[i] = pipe.Exists(ctx, NodeKey(m.keys, first+i))
			}
			return nil
		}); err != nil {
			return nil, redisconn.WrapError("list nodes", err)
		}
		found := len(names)
		for i, reply := range replies {
			if reply.Val() > 0 {
				names = append(names, nodeName(first+i))
			}
		}
		if len(names) == found {
			break
		}
	}
	return names, nil
}

// RecordKey is the record of a node.
func RecordKey(k keyspace.Space, node string) string { return k.Global("status:" + node) }

// StoreRecord stores what other nodes read about a node with [Manager.LoadRecords]. It expires after ttl.
func (m *Manager) StoreRecord(ctx context.Context, node string, record []byte, ttl time.Duration) error {
	return redisconn.WrapError("store the record of a node", m.client.Set(ctx, RecordKey(m.keys, node), record, ttl).Err())
}

// LoadRecords returns the records of nodes in the same order. The record of a node that has none is nil.
func (m *Manager) LoadRecords(ctx context.Context, nodes []string) ([][]byte, error) {
	replies := make([]*redis.StringCmd, len(nodes))
	if _, err := m.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, node := range nodes {
			replies[i] = pipe.Get(ctx, RecordKey(m.keys, node))
		}
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) {
		return nil, redisconn.WrapError("read the records of nodes", err)
	}
	records := make([][]byte, len(nodes))
	for i, reply := range replies {
		if reply.Err() == nil {
			records[i], _ = reply.Bytes()
		}
	}
	return records, nil
}
