package hub

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"

	"github.com/hubrelay/hubrelay/relay"
)

// Limits bound how many clients a node serves at once. Zero means no limit.
type Limits struct {
	// Node is for all clients together.
	Node int
	// Hub is for the clients of one hub's pipeline. An account pipeline belongs to no hub and counts for node and key.
	Hub int
	// Key is for the clients of one key, by its name.
	Key int
}

// Limit names one of the [Limits].
type Limit string

// The limits that may turn a client away.
const (
	LimitNode Limit = "node"
	LimitHub  Limit = "hub"
	LimitKey  Limit = "key"
)

// ConnectionLease is one client's share of the [Limits], whatever it speaks. It is given back once.
type ConnectionLease struct {
	places   *connectionLimiter
	hub, key string
	once     sync.Once
}

// Release gives the place back. It may be called more than once and concurrently.
func (p *ConnectionLease) Release() { p.once.Do(func() { p.places.release(p.hub, p.key) }) }

// Reserve takes a place for a client of key on the pipeline of hub (empty: an account pipeline), which whoever asked
// must release. Where there is none the error is 503.not-ready (node) or 429.rate-limiting (hub, key), and header gets
// a Retry-After. However many ask at once, no limit is exceeded.
func (h *Hub) Reserve(header http.Header, hub, key string) (*ConnectionLease, *relay.Error) {
	place, full := h.limits.acquire(hub, key)
	if full == "" {
		return place, nil
	}
	h.opts.Observer.Rejected(full)
	header.Set("Retry-After", strconv.Itoa(minRetryAfter+rand.IntN(retryAfterJitter)))
	limits := h.opts.Limits
	switch full {
	case LimitHub:
		return nil, limitError("hub", limits.Hub)
	case LimitKey:
		return nil, limitError("key", limits.Key)
	default:
		return nil, relay.NewError(relay.CodeNotReady, "this node serves as many streams as it can; connect again later")
	}
}

// Those who are turned away come back after 2 to 10 seconds, not all at once.
const (
	minRetryAfter    = 2
	retryAfterJitter = 9
)

func limitError(of string, limit int) *relay.Error {
	return relay.NewError(relay.CodeRateLimiting, fmt.Sprintf("this %s has %d streams open on this node, which is the most it may have; close one or connect again later", of, limit)).
		WithExtra("limit", limit).WithExtra("per", of)
}

// connectionLimiter counts who is there.
type connectionLimiter struct {
	limits Limits

	mu         sync.Mutex
	taken      int
	hubs, keys map[string]int
}

func newPlaces(l Limits) *connectionLimiter {
	return &connectionLimiter{limits: l, hubs: make(map[string]int), keys: make(map[string]int)}
}

// acquire returns a place, or the limit that is reached.
func (p *connectionLimiter) acquire(hub, key string) (*ConnectionLease, Limit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case limitReached(p.limits.Node, p.taken):
		return nil, LimitNode
	case hub != "" && limitReached(p.limits.Hub, p.hubs[hub]):
		return nil, LimitHub
	case limitReached(p.limits.Key, p.keys[key]):
		return nil, LimitKey
	}
	p.taken++
	p.keys[key]++
	if hub != "" {
		p.hubs[hub]++
	}
	return &ConnectionLease{places: p, hub: hub, key: key}, ""
}

func limitReached(limit, taken int) bool { return limit > 0 && taken >= limit }

func (p *connectionLimiter) release(hub, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	decrement(p.keys, key)
	if hub != "" {
		decrement(p.hubs, hub)
	}
}

// decrement counts one down, and forgets a name at zero: names come and go.
func decrement(counts map[string]int, name string) {
	if counts[name]--; counts[name] == 0 {
		delete(counts, name)
	}
}
