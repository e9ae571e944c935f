package quota

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// Kind is what a limit belongs to.
type Kind string

// The kinds of limits.
const (
	KindKey     Kind = "key"
	KindAccount Kind = "account"
	KindAddress Kind = "ip"
)

// Client identifies the sender of a request. An empty Account and an invalid Address have no limit.
type Client struct {
	Key, Account string
	Address      netip.Addr
}

// ExceededError reports that a limit is reached.
type ExceededError struct {
	Kind Kind
	// RetryIn is the time until the same request would be accepted.
	RetryIn time.Duration
}

// Error implements error.
func (e *ExceededError) Error() string {
	return fmt.Sprintf("the %s exceeds its quota; try again in %s", e.Kind, e.RetryIn)
}

// Options are the options of [NewQuotas]. Limits that are not set do not apply.
type Options struct {
	Key, Account, Address Limit
	Store                 Store
	// Name separates the buckets from the buckets of other quotas in the same store.
	Name string
	// Rejected, if set, counts rejected requests. It is called concurrently and must not block.
	Rejected func(Kind)
}

// Quotas applies the limits of keys, accounts and addresses. It may be used concurrently.
type Quotas struct {
	limiters []kindLimiter
	prefix   string // of the names of buckets
	rejected func(Kind)
}

type kindLimiter struct {
	kind Kind
	name func(Client) string // "" if the client has no bucket of this kind
	*Limiter
}

// NewQuotas returns the limits that are set.
func NewQuotas(o Options) *Quotas {
	q := &Quotas{rejected: o.Rejected}
	if o.Name != "" {
		q.prefix = o.Name + ":"
	}
	for _, k := range []struct {
		kind  Kind
		limit Limit
		name  func(Client) string
	}{
		{KindKey, o.Key, keyName},
		{KindAccount, o.Account, func(c Client) string { return c.Account }},
		{KindAddress, o.Address, addressName},
	} {
		if k.limit.IsSet() {
			q.limiters = append(q.limiters, kindLimiter{k.kind, k.name, NewLimiter(k.limit, o.Store)})
		}
	}
	return q
}

// keyName returns the name of a key in its account, because keys of other systems have names that are unique only there.
func keyName(c Client) string {
	if c.Key == "" || c.Account == "" {
		return c.Key
	}
	return c.Account + "\x00" + c.Key
}

// addressName returns the name of an address. Loopback is the operator's own machine and has no limit.
func addressName(c Client) string {
	addr := c.Address.Unmap()
	if !addr.IsValid() || addr.IsLoopback() {
		return ""
	}
	return clientaddr.Group(addr).String()
}

// Take takes tokens from all limits of a client. If one is reached, it takes none and returns an [*ExceededError]. Any
// other error means that the store did not respond or that ctx has ended.
func (q *Quotas) Take(ctx context.Context, c Client, a Amount) error {
	for i, l := range q.limiters {
		name := l.name(c)
		if name == "" {
			continue
		}
		retryIn, err := l.Take(ctx, q.bucketName(l.kind, name), a)
		if err == nil && retryIn == 0 {
			continue
		}
		for _, earlier := range q.limiters[:i] {
			if name := earlier.name(c); name != "" {
				earlier.giveBack(q.bucketName(earlier.kind, name), a)
			}
		}
		if err != nil {
			return err
		}
		if q.rejected != nil {
			q.rejected(l.kind)
		}
		return &ExceededError{l.kind, retryIn}
	}
	return nil
}

func (q *Quotas) bucketName(k Kind, name string) string { return q.prefix + string(k) + ":" + name }
