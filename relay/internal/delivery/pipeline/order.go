package pipeline

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/admission"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

const (
	// keyLockTimeout is the time for which a claimed delivery waits for another one with its key that is in flight. It
	// is then released for the same time.
	keyLockTimeout = 100 * time.Millisecond
	// blockedKeysInterval is the time between reads of the blocked keys, which also unblock keys.
	blockedKeysInterval = 30 * time.Second
	// blockedKeysRetryDelay is the delay after they could not be read.
	blockedKeysRetryDelay = time.Second
)

// orderStage delivers one after the other what has the same ordering key, on the one node that is the leader of the
// sink.
//
// The order is that of the retry queue in Redis: a fresh delivery is attempted only if nothing with its key is
// scheduled, and of the scheduled ones only the first is ever due. The leader keeps in memory which keys may be
// blocked.
type orderStage struct {
	next      Handler
	opts      *Options
	admission *admission.Admission
	depth     *depthTracker
	postponer *postponer
	store     *store.Orders
	refresh   chan struct{} // read the blocked keys now

	mu       sync.Mutex
	lease    context.Context // of the leader; nil while this node is not the leader
	running  sync.WaitGroup  // items that started while it was
	inFlight map[string]chan struct{}
	// blocked contains at least every key with scheduled deliveries, with the version at which it was blocked. Before a
	// fresh delivery with such a key is attempted, the leader checks Redis.
	blocked map[string]uint64
	version uint64
}

func newOrderStage(
	next Handler, o *Options, a *admission.Admission, depth *depthTracker, p *postponer,
) *orderStage {
	return &orderStage{
		next: next, opts: o, admission: a, depth: depth, postponer: p, store: &o.Store.Orders, refresh: make(chan struct{}, 1),
		inFlight: make(map[string]chan struct{}), blocked: make(map[string]uint64),
	}
}

func (s *orderStage) Handle(ctx context.Context, it *Item) error {
	lease := s.beginItem()
	if lease == nil {
		return errNotLeader
	}
	defer s.running.Done()
	if it.Claim == nil {
		return s.handleFresh(ctx, it, s.opts.Ordering.StoredKey(it.Delivery.Notifications[0]))
	}
	key := s.opts.Ordering.StoredKey(it.Record.Notifications[0].Decode())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(lease, cancel)()
	if !s.lockKeyForClaim(ctx, key) {
		it.Permit.Cancel()
		return it.Origin.Release(ctx, it, keyLockTimeout)
	}
	defer s.unlockKey(key)
	// Release before the key is unlocked and before stepDown returns, so the next leader finds the delivery.
	releaseOnError(ctx, it, s.next.Handle(ctx, it))
	return nil
}

// handleFresh attempts a fresh delivery if nothing with its key is scheduled, and otherwise schedules it after the
// others.
func (s *orderStage) handleFresh(ctx context.Context, it *Item, key string) error {
	for {
		version, inFlight, ok := s.lockKey(key)
		if ok {
			defer s.unlockKey(key)
			it.Origin = blockingOrigin{it.Origin, s, key}
			return s.next.Handle(ctx, it)
		}
		if held, err := s.holdFresh(ctx, it, key); held || err != nil {
			return err
		}
		s.unblockKey(key, version)
		if inFlight != nil {
			if _, err := await.Value(ctx, inFlight); err != nil {
				return err
			}
		}
	}
}

// holdFresh schedules a fresh delivery after those with its key. Without one, it returns false.
func (s *orderStage) holdFresh(ctx context.Context, it *Item, key string) (held bool, err error) {
	it.Permit.Account, it.Permit.CanPostpone = accountOf(it), s.postponer.opts.canPostpone()
	if err := s.admission.WaitOpen(ctx, &it.Permit); errors.Is(err, admission.ErrPostponed) {
		defer s.postponer.searchQueue(ctx)
	} else if err != nil {
		return false, err
	}
	if s.opts.isErased(it) {
		return true, nil
	}
	r := store.NewRecord(it.Delivery, s.opts.Now()) // max_age counts, or a key that always fails would fill the queue
	body, err := r.Encode()
	if err != nil {
		return false, err
	}
	d := store.Scheduled{ID: it.Delivery.ID, Body: body, OrderingKey: key}
	var depth int64
	err = store.Persist(ctx, func(ctx context.Context) error {
		depth, held, err = s.store.Hold(ctx, s.opts.Name, d, r.ArrivedAt(s.opts.Now()))
		return err
	})
	if held {
		s.blockKey(key)
		s.depth.set(depth, len(body))
	}
	return held, err
}

// blockingOrigin blocks the key of a fresh delivery when it is scheduled, before another one can lock the key.
type blockingOrigin struct {
	Origin
	orders *orderStage
	key    string
}

// Retry implements [Origin].
func (o blockingOrigin) Retry(ctx context.Context, it *Item, after time.Duration) error {
	defer o.orders.blockKey(o.key) // after an error too, because Redis may have scheduled it
	return o.Origin.Retry(ctx, it, after)
}

// beginItem counts an item as running until running.Done. It returns the context of the leader, or nil if this node is
// not the leader.
func (s *orderStage) beginItem() (lease context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease != nil {
		s.running.Add(1)
	}
	return s.lease
}

// lockKey locks a key for a fresh delivery. If the key is blocked or in flight, it returns false, the version at which
// it was blocked, and a channel that is closed when it is no longer in flight.
func (s *orderStage) lockKey(key string) (version uint64, inFlight <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, isBlocked := s.blocked[key]
	other, isInFlight := s.inFlight[key]
	if isBlocked || isInFlight {
		return version, other, false
	}
	s.inFlight[key] = make(chan struct{})
	return 0, nil, true
}

// lockKeyForClaim locks a key for a scheduled delivery, which also blocks the key. It waits a short time for another
// one that is in flight and may have just ended.
func (s *orderStage) lockKeyForClaim(ctx context.Context, key string) bool {
	s.blockKey(key)
	ctx, cancel := context.WithTimeout(ctx, keyLockTimeout)
	defer cancel()
	for {
		s.mu.Lock()
		other, isInFlight := s.inFlight[key]
		if !isInFlight {
			s.inFlight[key] = make(chan struct{})
		}
		s.mu.Unlock()
		if !isInFlight {
			return true
		}
		if _, late := await.Value(ctx, other); late != nil {
			return false
		}
	}
}

func (s *orderStage) unlockKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.inFlight[key])
	delete(s.inFlight, key)
}

// blockKey must be called after a delivery with the key was scheduled and before the key is unlocked.
func (s *orderStage) blockKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.blocked[key] = s.version
}

// unblockKey unblocks a key unless it was blocked again after the version.
func (s *orderStage) unblockKey(key string, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocked[key] == version {
		delete(s.blocked, key)
	}
}

// replaceBlocked replaces the keys that were blocked up to a version by the keys that Redis returned later.
func (s *orderStage) replaceBlocked(version uint64, keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.blocked, func(_ string, blockedAt uint64) bool { return blockedAt <= version })
	s.version++
	for _, key := range keys {
		s.blocked[key] = s.version
	}
}

// isLeader reports whether this node may attempt the deliveries of the sink.
func (s *orderStage) isLeader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease != nil
}

func (s *orderStage) becomeLeader(lease context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = lease
}

// stepDown waits until no item is running.
func (s *orderStage) stepDown() {
	s.mu.Lock()
	s.lease = nil
	s.mu.Unlock()
	s.running.Wait()
}

// Ordered reports whether the sink is ordered and needs a leader.
func (p *Pipeline) Ordered() bool { return p.orders != nil }

// RunAsLeader makes this node the leader of an ordered sink while work runs. The caller holds a lease. work passes the
// deliveries of the queue to [Pipeline.Handle], those with the same key one after the other. When ctx ends, work may
// finish what is running. When lease ends, running retries are aborted; work must do the same through the contexts of
// Handle. RunAsLeader returns when nothing is running.
func (p *Pipeline) RunAsLeader(ctx, lease context.Context, work func(context.Context) error) error {
	s := p.orders
	if s == nil {
		return errors.New("run as leader: the sink is not ordered")
	}
	if err := s.refreshBlockedKeys(ctx); err != nil {
		return err
	}
	s.becomeLeader(lease)
	p.opts.Wake(0)
	p.opts.Log.Info("node became the leader of an ordered sink")
	watchCtx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.watchBlockedKeys(watchCtx) })
	defer func() {
		cancel()
		watching.Wait()
		s.stepDown()
	}()
	return work(ctx)
}

// refreshSoon makes the leader read the blocked keys, because deliveries may have been scheduled by others.
func (s *orderStage) refreshSoon() {
	select {
	case s.refresh <- struct{}{}:
	default:
	}
}

func (s *orderStage) refreshBlockedKeys(ctx context.Context) error {
	s.mu.Lock()
	version := s.version
	s.mu.Unlock()
	keys, err := s.store.Keys(ctx, s.opts.Name)
	if err != nil {
		return err
	}
	s.replaceBlocked(version, keys)
	return nil
}

func (s *orderStage) watchBlockedKeys(ctx context.Context) {
	timer := time.NewTimer(blockedKeysInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.refresh:
		}
		start := time.Now()
		if err := s.refreshBlockedKeys(ctx); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("ordering keys of scheduled deliveries could not be read", "error", err)
			timer.Reset(blockedKeysRetryDelay)
			continue
		}
		timer.Reset(nextRefresh(time.Since(start)))
	}
}

// nextRefresh returns the delay before the next read of the blocked keys, which may be a million. Redis spends
// at most a twentieth of its time on them.
func nextRefresh(duration time.Duration) time.Duration { return max(blockedKeysInterval, 20*duration) }
