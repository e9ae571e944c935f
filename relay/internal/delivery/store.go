package delivery

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Keys names what a sink has in Redis. In a cluster the first nine share a slot.
type Keys interface {
	RetrySchedule(sink string) string
	RetryBodies(sink string) string
	RetryArrival(sink string) string
	OrderingQueue(sink string) string
	OrderingMembers(sink string) string
	DeadLetters(sink string) string
	DeadIndex(sink string) string
	FailureStart(sink string) string
	SinkStats(sink string) string
	SinkState(sink string) string
	// Digests, Gathering and all that Digest returns share the slot too.
	Digests(sink string) string
	DigestCount(sink string) string
	Digest(sink, group string) string
	// BatchedIDs and Batches too.
	BatchedIDs(sink string) string
	BatchLog(sink string) string
	// SinkMemory is of a sink and a name.
	SinkMemory(sink, name string) string
	// Rate is of a sink, or of several that share a rate.
	Rate(name string) string
	// SinkChanges belongs to all sinks.
	SinkChanges() string
}

// Store is the delay queues, dead letters and states of all sinks in Redis. All times are Redis' own, so that nodes
// need not agree on the time. It may be used concurrently.
type Store struct {
	client redis.UniversalClient
	keys   Keys

	orders sync.Map // the Ordering of this node's sinks by name
}

// NewStore returns a Store on client, which must not repeat commands by itself (MaxRetries -1).
func NewStore(client redis.UniversalClient, keys Keys) *Store {
	return &Store{client: client, keys: keys}
}

var (
	//go:embed scripts/retry_queue.lua
	delaySource string
	//go:embed scripts/deadletter_common.lua
	letterSource string
	//go:embed scripts/retry_schedule.lua
	parkSource string
	//go:embed scripts/claim.lua
	claimSource string
	//go:embed scripts/reschedule.lua
	againSource string
	//go:embed scripts/complete.lua
	doneSource string
	//go:embed scripts/deadletter_claimed.lua
	burySource string
	//go:embed scripts/deadletter_add.lua
	deadSource string

	deadScript  = redis.NewScript(letterSource + deadSource)
	parkScript  = redis.NewScript(delaySource + parkSource)
	againScript = redis.NewScript(delaySource + againSource)
	doneScript  = redis.NewScript(delaySource + doneSource)
	buryScript  = redis.NewScript(delaySource + letterSource + burySource)
)

// claim is a parked delivery that this node works on until ends, in unix milliseconds of Redis.
type claim struct {
	sink     string
	id       string
	leaseEnd string
	body     string
}

// retryQueueKeys are the keys of a sink's delay queue as its scripts expect them, around those of a script's own.
func (s *Store) retryQueueKeys(sink string, more ...string) []string {
	keys := append([]string{s.keys.RetrySchedule(sink), s.keys.RetryBodies(sink), s.keys.RetryArrival(sink)}, more...)
	return append(keys, s.keys.OrderingQueue(sink), s.keys.OrderingMembers(sink))
}

// scheduleRetry stores a delivery that is due after wait, behind those of its ordering key where it has one, and that came at
// since. One that is parked already stays as it is. It returns how many are parked now.
func (s *Store) scheduleRetry(ctx context.Context, sink, id, body string, wait time.Duration, since time.Time, key string) (int64, error) {
	n, err := parkScript.Run(ctx, s.client, s.retryQueueKeys(sink), id, wait.Milliseconds(), since.UnixMilli(), body, key).Int64()
	if err != nil {
		return 0, fmt.Errorf("park a delivery: %w", err)
	}
	return n, nil
}

// reschedule parks a claimed delivery again. It reports false where the claim was lost, and then changes nothing.
func (s *Store) reschedule(ctx context.Context, c claim, body string, wait time.Duration) (bool, error) {
	n, err := againScript.Run(ctx, s.client, s.retryQueueKeys(c.sink), c.id, c.leaseEnd, wait.Milliseconds(), body).Int()
	if err != nil {
		return false, fmt.Errorf("park a delivery again: %w", err)
	}
	return n == 1, nil
}

// complete removes a delivery from the delay queue, and tells whether the next of its ordering key became due by that.
func (s *Store) complete(ctx context.Context, c claim) (next bool, err error) {
	n, err := doneScript.Run(ctx, s.client, s.retryQueueKeys(c.sink, s.keys.FailureStart(c.sink)), c.id).Int()
	if err != nil {
		return false, fmt.Errorf("remove a delivered delivery: %w", err)
	}
	return n == 1, nil
}

// addDeadLetter writes the dead letter of a fresh delivery. Beyond most, where that is not zero, the oldest go: it returns how
// many did.
func (s *Store) addDeadLetter(ctx context.Context, sink, id string, most int64, fields []any) (gone int64, err error) {
	keys := []string{s.keys.DeadLetters(sink), s.keys.DeadIndex(sink)}
	gone, err = deadScript.Run(ctx, s.client, keys, append([]any{id, most}, fields...)...).Int64()
	if err != nil {
		return 0, fmt.Errorf("write a dead letter: %w", err)
	}
	return gone, nil
}

// deadLetterClaimed turns a claimed delivery into a dead letter, and is like addDead else. It reports false where the claim was lost.
func (s *Store) deadLetterClaimed(ctx context.Context, c claim, most int64, fields []any) (gone int64, held bool, err error) {
	keys := s.retryQueueKeys(c.sink, s.keys.DeadLetters(c.sink), s.keys.DeadIndex(c.sink))
	gone, err = buryScript.Run(ctx, s.client, keys, append([]any{c.id, c.leaseEnd, most}, fields...)...).Int64()
	if err != nil {
		return 0, false, fmt.Errorf("write a dead letter: %w", err)
	}
	return max(gone, 0), gone >= 0, nil
}

// dueQuery is a question about one sink, and look's answer.
type dueQuery struct {
	sink         string
	maxClaims    int           // to claim
	wantsClaims  bool          // whether slots were asked for, even if there was none
	lease        time.Duration // of the claims
	wantsState   bool          // whether the state is wanted too
	stateVersion int           // when, as Pipeline.asking said
	blocked      bool          // the breaker lets nothing begin
	rateLimited  bool          // the gate is why
	retryIn      time.Duration // when it may, zero where it will say so

	claimed    []claim
	dueDigests []string // whose digests are to be sealed
	lostIDs    []string
	nextDueIn  time.Duration // until the next is due, negative for none
	scheduled  int64         // how many there are
	sinkState  SinkState
	failing    bool // whether there was a failure since the last success
	err        error
}

// queryDue asks about all sinks in one go. An error of one sink is in its look.
func (s *Store) queryDue(ctx context.Context, looks []*dueQuery) {
	claims := make([]*redis.Cmd, len(looks))
	states := make([]*redis.MapStringStringCmd, len(looks))
	failing := make([]*redis.IntCmd, len(looks))
	digests := make([]*redis.ZSliceCmd, len(looks))
	// EVAL and not EVALSHA: a pipeline cannot fall back when a restarted Redis has forgotten the script.
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, l := range looks {
			claims[i] = pipe.Eval(ctx, delaySource+claimSource, s.retryQueueKeys(l.sink), l.maxClaims, l.lease.Milliseconds())
			digests[i] = pipe.ZRangeWithScores(ctx, s.keys.Digests(l.sink), 0, int64(l.maxClaims))
			if l.wantsState {
				states[i] = pipe.HGetAll(ctx, s.keys.SinkState(l.sink))
				failing[i] = pipe.Exists(ctx, s.keys.FailureStart(l.sink))
			}
		}
		return nil
	})
	for i, l := range looks {
		reply, e := claims[i].Slice()
		if e == nil && reply == nil {
			e = err
		}
		if e == nil {
			e = l.decode(reply)
		}
		if e == nil {
			var open []redis.Z
			if open, e = digests[i].Result(); e == nil {
				e = l.selectDueDigests(open, fmt.Sprint(reply[0]))
			}
		}
		if e == nil && l.wantsState {
			var fields map[string]string
			fields, e = states[i].Result()
			l.sinkState, l.failing = decodeSinkState(fields), failing[i].Val() == 1
		}
		if e != nil {
			l.err = fmt.Errorf("look for due deliveries: %w", e)
		}
	}
}

var errReply = errors.New("redis answered something unexpected")

func (l *dueQuery) decode(reply []any) error {
	if len(reply) != 5 {
		return errReply
	}
	ends, ok1 := reply[0].(string)
	next, ok2 := reply[1].(int64)
	lost, ok3 := reply[2].([]any)
	claimed, ok4 := reply[3].([]any)
	parked, ok5 := reply[4].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || len(claimed)%2 != 0 {
		return errReply
	}
	l.scheduled = parked
	l.nextDueIn = time.Duration(next) * time.Millisecond
	for _, id := range lost {
		l.lostIDs = append(l.lostIDs, fmt.Sprint(id))
	}
	for i := 0; i < len(claimed); i += 2 {
		id, ok1 := claimed[i].(string)
		body, ok2 := claimed[i+1].(string)
		if !ok1 || !ok2 {
			return errReply
		}
		l.claimed = append(l.claimed, claim{sink: l.sink, leaseEnd: ends, id: id, body: body})
	}
	return nil
}
