package clients

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

// Limits are the maximum numbers of clients of a node. Zero means no limit.
type Limits struct {
	// Node limits all clients together.
	Node int
	// Hub limits the clients of one hub stream. Account streams belong to no hub.
	Hub int
	// Key limits the clients of one key, by its name.
	Key int
}

// Limit names one of the [Limits].
type Limit string

// The limits that may reject a client.
const (
	LimitNode Limit = "node"
	LimitHub  Limit = "hub"
	LimitKey  Limit = "key"
)

// ConnectionLease is the share of one client in the [Limits].
type ConnectionLease struct {
	limiter  *connectionLimiter
	hub, key string
	once     sync.Once
}

// Release returns the share. It may be called several times and concurrently.
func (c *ConnectionLease) Release() { c.once.Do(func() { c.limiter.release(c.hub, c.key) }) }

// Reserve acquires a lease for a client of a key on the stream of a hub (empty for an account stream). The caller
// must release it. If a limit is reached, the error is 503.not-ready (node) or 429.rate-limiting (hub, key), and
// Reserve sets Retry-After in header. Concurrent calls never exceed a limit.
func (s *Server) Reserve(header http.Header, hub, key string) (*ConnectionLease, *relay.Error) {
	lease, full := s.limits.acquire(hub, key)
	if full == "" {
		return lease, nil
	}
	s.opts.Observer.Rejected(full)
	header.Set("Retry-After", strconv.Itoa(minRetryAfter+rand.IntN(retryAfterJitter)))
	limits := s.opts.Limits
	switch full {
	case LimitHub:
		return nil, limitError("hub", limits.Hub)
	case LimitKey:
		return nil, limitError("key", limits.Key)
	default:
		return nil, relay.NewError(relay.CodeNotReady,
			"this node serves as many streams as it can; connect again later")
	}
}

// Rejected clients retry after 2 to 10 seconds. The jitter spreads retries.
const (
	minRetryAfter    = 2
	retryAfterJitter = 9
)

func limitError(of string, limit int) *relay.Error {
	detail := fmt.Sprintf("this %s has %d streams open on this node, which is the most it may have; "+
		"close one or connect again later", of, limit)
	return relay.NewError(relay.CodeRateLimiting, detail).
		WithExtra("limit", limit).WithExtra("per", of)
}

// connectionLimiter counts the connected clients.
type connectionLimiter struct {
	limits Limits

	mu         sync.Mutex
	taken      int
	hubs, keys map[string]int
}

func newConnectionLimiter(l Limits) *connectionLimiter {
	return &connectionLimiter{limits: l, hubs: make(map[string]int), keys: make(map[string]int)}
}

// acquire returns a lease, or the limit that is reached.
func (c *connectionLimiter) acquire(hub, key string) (*ConnectionLease, Limit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case limitReached(c.limits.Node, c.taken):
		return nil, LimitNode
	case hub != "" && limitReached(c.limits.Hub, c.hubs[hub]):
		return nil, LimitHub
	case limitReached(c.limits.Key, c.keys[key]):
		return nil, LimitKey
	}
	c.taken++
	c.keys[key]++
	if hub != "" {
		c.hubs[hub]++
	}
	return &ConnectionLease{limiter: c, hub: hub, key: key}, ""
}

func limitReached(limit, taken int) bool { return limit > 0 && taken >= limit }

func (c *connectionLimiter) release(hub, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken--
	decrementCount(c.keys, key)
	if hub != "" {
		decrementCount(c.hubs, hub)
	}
}

// decrementCount subtracts one and removes a name at zero, because the number of names is not limited.
func decrementCount(counts map[string]int, name string) {
	if counts[name]--; counts[name] == 0 {
		delete(counts, name)
	}
}
