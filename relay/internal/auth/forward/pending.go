package forward

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

const (
	// maxRunning is the maximum number of requests that the endpoint receives at once.
	maxRunning = 64
	// maxPending is the maximum number of running and waiting requests.
	maxPending = 4 * maxRunning
	// maxPendingPerAddress is the part of it that one client address can use (see [clientaddr.Group]). Guesses
	// from one address then do not delay others.
	maxPendingPerAddress = maxRunning / 2
	// maxRunningPerAddress is the maximum number of running requests of one client address. A few addresses with slow
	// responses then do not make all others wait.
	maxRunningPerAddress = maxRunning / 4
)

var (
	// errTooMany reports that a request was rejected without asking the endpoint.
	errTooMany  = errors.New("too many credentials are being verified")
	errTimeout  = errors.New("the endpoint did not respond in time")
	errNoCaller = errors.New("all callers have left")
)

// pendingRequests shares one request to the endpoint among concurrent callers with the same credential and hub. The
// request ends when the last of them has left.
//
// The next request that starts is the oldest one of the address with the fewest running requests. If there is no room for a
// request, the newest waiting request of the address with the most requests is rejected. So addresses with slow responses can
// delay other addresses, but not exclude them.
type pendingRequests struct {
	timeout time.Duration // for a request, including its wait

	mu        sync.Mutex
	byKey     map[string]*pendingRequest
	waiting   []*pendingRequest // in order of arrival
	running   int
	byAddress map[netip.Prefix]addressCount
}

// addressCount counts the requests of one address.
type addressCount struct{ running, waiting int }

func (c addressCount) countPending() int { return c.running + c.waiting }

type pendingRequest struct {
	id        string
	group     netip.Prefix
	start     chan struct{} // closed when it may be sent
	isRunning bool
	done      chan struct{} // closed when key and err are set
	key       *auth.Key
	err       error
	callers   int
	cancel    context.CancelCauseFunc
}

func newPendingRequests(timeout time.Duration) *pendingRequests {
	return &pendingRequests{
		timeout: timeout, byKey: make(map[string]*pendingRequest), byAddress: make(map[netip.Prefix]addressCount),
	}
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
	p.leaveRequest(r)
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
	if !p.makeRoom(group) {
		return nil
	}
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), p.timeout, errTimeout)
	ctx, cancel := context.WithCancelCause(ctx)
	r := &pendingRequest{
		id: id, group: group, start: make(chan struct{}), done: make(chan struct{}), callers: 1, cancel: cancel,
	}
	p.byKey[id] = r
	p.waiting = append(p.waiting, r)
	p.addToCount(group, addressCount{waiting: 1})
	p.startNext()
	go func() {
		defer stop()
		if _, r.err = await.Value(ctx, r.start); r.err == nil {
			r.key, r.err = ask(ctx)
		}
		cancel(nil)
		p.endRequest(r)
		close(r.done)
	}()
	return r
}

// makeRoom reports whether a request of an address may be added. It rejects a waiting request of another address if necessary.
func (p *pendingRequests) makeRoom(group netip.Prefix) bool {
	own := p.byAddress[group].countPending()
	if own >= maxPendingPerAddress {
		return false
	}
	if p.running+len(p.waiting) < maxPending {
		return true
	}
	var victim *pendingRequest
	for _, r := range slices.Backward(p.waiting) {
		if victim == nil || p.byAddress[r.group].countPending() > p.byAddress[victim.group].countPending() {
			victim = r
		}
	}
	if victim == nil || p.byAddress[victim.group].countPending() <= own+1 {
		return false
	}
	p.stopSharing(victim)
	p.removeWaiting(victim)
	victim.cancel(errTooMany)
	return true
}

// startNext starts a request if one may be sent.
func (p *pendingRequests) startNext() {
	if p.running >= maxRunning || len(p.waiting) == 0 {
		return
	}
	next := slices.MinFunc(p.waiting, func(a, b *pendingRequest) int {
		return cmp.Compare(p.byAddress[a.group].running, p.byAddress[b.group].running)
	})
	if p.byAddress[next.group].running >= maxRunningPerAddress {
		return
	}
	p.removeWaiting(next)
	next.isRunning = true
	p.running++
	p.addToCount(next.group, addressCount{running: 1})
	close(next.start)
}

func (p *pendingRequests) removeWaiting(r *pendingRequest) {
	if i := slices.Index(p.waiting, r); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.addToCount(r.group, addressCount{waiting: -1})
	}
}

func (p *pendingRequests) endRequest(r *pendingRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopSharing(r)
	if !r.isRunning {
		p.removeWaiting(r)
		return
	}
	p.running--
	p.addToCount(r.group, addressCount{running: -1})
	p.startNext()
}

// addToCount adds to the requests of an address.
func (p *pendingRequests) addToCount(group netip.Prefix, n addressCount) {
	c := p.byAddress[group]
	c.running += n.running
	c.waiting += n.waiting
	if p.byAddress[group] = c; c.countPending() == 0 {
		delete(p.byAddress, group)
	}
}

// leaveRequest ends the wait of a caller, and cancels the request after the last one.
func (p *pendingRequests) leaveRequest(r *pendingRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.callers--; r.callers > 0 {
		return
	}
	p.stopSharing(r)
	r.cancel(errNoCaller)
}

// stopSharing prevents new callers from joining a request that ends.
func (p *pendingRequests) stopSharing(r *pendingRequest) {
	if p.byKey[r.id] == r {
		delete(p.byKey, r.id)
	}
}
