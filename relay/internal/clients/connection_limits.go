package clients

import (
	"cmp"
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
	// Account limits the clients of all keys of one account. A key for all accounts, or without an account, does not count.
	Account int
}

// Limit names one of the [Limits].
type Limit string

// The limits that may reject a client.
const (
	LimitNode    Limit = "node"
	LimitHub     Limit = "hub"
	LimitKey     Limit = "key"
	LimitAccount Limit = "account"
)

// leaseOwner names what a client counts for. hub is empty for an account stream, and account for a key without a limit per
// account.
type leaseOwner struct{ hub, key, account string }

// replayOwner returns the account, or the key without an account. Owners take turns with replays.
func (o leaseOwner) replayOwner() string { return cmp.Or(o.account, o.key) }

// connectionLease is the share of one client in the [Limits].
type connectionLease struct {
	limiter *connectionLimiter
	owner   leaseOwner
	once    sync.Once
}

// release returns the share. It may be called several times and concurrently.
func (l *connectionLease) release() { l.once.Do(func() { l.limiter.releaseLease(l.owner) }) }

// reserveLease acquires a lease for a client. The caller must release it. If a limit is reached, the error is 503.not-ready (node)
// or 429.rate-limiting (hub, key, account), and reserveLease sets Retry-After in header. Concurrent calls never exceed a limit.
func (s *Server) reserveLease(header http.Header, sub *Subscription) (*connectionLease, *relay.Error) {
	o := leaseOwner{hub: sub.Hub}
	if sub.Key != "" { // keys of other systems have names that are unique only in their account
		o.key = sub.Account + "\x00" + sub.Key
	}
	if sub.Account != anyAccount {
		o.account = sub.Account
	}
	lease, full := s.limits.acquireLease(o)
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
	case LimitAccount:
		return nil, limitError("account", limits.Account)
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

	mu                   sync.Mutex
	taken                int
	hubs, keys, accounts clientCounts
}

func newConnectionLimiter(l Limits) *connectionLimiter {
	return &connectionLimiter{
		limits: l, hubs: make(clientCounts), keys: make(clientCounts), accounts: make(clientCounts),
	}
}

// acquireLease returns a lease, or the limit that is reached.
func (c *connectionLimiter) acquireLease(o leaseOwner) (*connectionLease, Limit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case limitReached(c.limits.Node, c.taken):
		return nil, LimitNode
	case limitReached(c.limits.Hub, c.hubs[o.hub]):
		return nil, LimitHub
	case limitReached(c.limits.Key, c.keys[o.key]):
		return nil, LimitKey
	case limitReached(c.limits.Account, c.accounts[o.account]):
		return nil, LimitAccount
	}
	c.taken++
	c.hubs.add(o.hub, 1)
	c.keys.add(o.key, 1)
	c.accounts.add(o.account, 1)
	return &connectionLease{limiter: c, owner: o}, ""
}

func limitReached(limit, taken int) bool { return limit > 0 && taken >= limit }

func (c *connectionLimiter) releaseLease(o leaseOwner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken--
	c.hubs.add(o.hub, -1)
	c.keys.add(o.key, -1)
	c.accounts.add(o.account, -1)
}

// clientCounts are numbers of clients by name. An empty name is not counted.
type clientCounts map[string]int

// add adds n. It removes a name at zero, because the number of names is not limited.
func (c clientCounts) add(name string, n int) {
	if name == "" {
		return
	}
	if c[name] += n; c[name] == 0 {
		delete(c, name)
	}
}
