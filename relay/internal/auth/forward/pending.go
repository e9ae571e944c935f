package forward

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

const (
	// maxConnections is the maximum number of requests that the endpoint receives at once.
	maxConnections = 64
	// maxPending is the maximum number of requests in progress and waiting.
	maxPending = 4 * maxConnections
	// maxPendingPerAddress is the part of it that one client address can use (see [clientaddr.Group]). Guesses
	// from one address then do not delay others.
	maxPendingPerAddress = maxConnections / 2
)

// errTooMany reports that a request was rejected without asking the endpoint.
var errTooMany = errors.New("too many credentials are being verified")

// pendingRequests shares one request to the endpoint among concurrent callers with the same credential and hub. The
// request ends when the last of them has left.
type pendingRequests struct {
	mu        sync.Mutex
	byKey     map[string]*pendingRequest
	byAddress map[netip.Prefix]int
}

type pendingRequest struct {
	done    chan struct{} // closed when key and err are set
	key     *auth.Key
	err     error
	callers int
	cancel  context.CancelCauseFunc
}

// shareRequest calls ask, unless a call for the same id is in progress, and returns its result. It returns the cause of ctx if
// that ends first, and errTooMany at the limits.
func (p *pendingRequests) shareRequest(
	ctx context.Context, id string, addr netip.Addr, ask func(context.Context) (*auth.Key, error),
) (*auth.Key, error) {
	r := p.joinRequest(ctx, id, clientaddr.Group(addr), ask)
	if r == nil {
		return nil, errTooMany
	}
	_, err := await.Value(ctx, r.done)
	p.leaveRequest(id, r)
	if err != nil {
		return nil, err
	}
	return r.key, r.err
}

func (p *pendingRequests) joinRequest(
	ctx context.Context, id string, group netip.Prefix, ask func(context.Context) (*auth.Key, error),
) *pendingRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.byKey[id]; r != nil {
		r.callers++
		return r
	}
	if len(p.byKey) >= maxPending || p.byAddress[group] >= maxPendingPerAddress {
		return nil
	}
	if p.byKey == nil {
		p.byKey, p.byAddress = make(map[string]*pendingRequest), make(map[netip.Prefix]int)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &pendingRequest{done: make(chan struct{}), callers: 1, cancel: cancel}
	p.byKey[id] = r
	p.byAddress[group]++
	go func() {
		r.key, r.err = ask(ctx)
		p.mu.Lock()
		if p.byKey[id] == r {
			delete(p.byKey, id)
		}
		if p.byAddress[group]--; p.byAddress[group] == 0 {
			delete(p.byAddress, group)
		}
		p.mu.Unlock()
		cancel(nil)
		close(r.done)
	}()
	return r
}

var errNoCaller = errors.New("all callers have left")

// leaveRequest ends the wait of a caller, and cancels the request after the last one.
func (p *pendingRequests) leaveRequest(id string, r *pendingRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.callers--; r.callers > 0 {
		return
	}
	if p.byKey[id] == r {
		delete(p.byKey, id) // a new caller must not join a canceled request
	}
	r.cancel(errNoCaller)
}
