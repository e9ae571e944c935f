package deliver

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
	Retry(sink string) string
	Parked(sink string) string
	Since(sink string) string
	Line(sink string) string
	Lined(sink string) string
	DeadLetters(sink string) string
	DeadIndex(sink string) string
	Failing(sink string) string
	Figures(sink string) string
	SinkState(sink string) string
	// Digests, Gathering and all that Digest returns share the slot too.
	Digests(sink string) string
	Gathering(sink string) string
	Digest(sink, group string) string
	// Batched and Batches too.
	Batched(sink string) string
	Batches(sink string) string
	// Memory is of a sink and a name.
	Memory(sink, name string) string
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
	//go:embed scripts/delay.lua
	delaySource string
	//go:embed scripts/letter.lua
	letterSource string
	//go:embed scripts/park.lua
	parkSource string
	//go:embed scripts/claim.lua
	claimSource string
	//go:embed scripts/again.lua
	againSource string
	//go:embed scripts/done.lua
	doneSource string
	//go:embed scripts/bury.lua
	burySource string
	//go:embed scripts/dead.lua
	deadSource string

	deadScript  = redis.NewScript(letterSource + deadSource)
	parkScript  = redis.NewScript(delaySource + parkSource)
	againScript = redis.NewScript(delaySource + againSource)
	doneScript  = redis.NewScript(delaySource + doneSource)
	buryScript  = redis.NewScript(delaySource + letterSource + burySource)
)

// claim is a parked delivery that this node works on until ends, in unix milliseconds of Redis.
type claim struct {
	sink string
	id   string
	ends string
	body string
}

// delay are the keys of a sink's delay queue as its scripts expect them, around those of a script's own.
func (s *Store) delay(sink string, more ...string) []string {
	keys := append([]string{s.keys.Retry(sink), s.keys.Parked(sink), s.keys.Since(sink)}, more...)
	return append(keys, s.keys.Line(sink), s.keys.Lined(sink))
}

// park stores a delivery that is due after wait, behind those of its ordering key where it has one, and that came at
// since. One that is parked already stays as it is. It returns how many are parked now.
func (s *Store) park(ctx context.Context, sink, id, body string, wait time.Duration, since time.Time, key string) (int64, error) {
	n, err := parkScript.Run(ctx, s.client, s.delay(sink), id, wait.Milliseconds(), since.UnixMilli(), body, key).Int64()
	if err != nil {
		return 0, fmt.Errorf("park a delivery: %w", err)
	}
	return n, nil
}

// again parks a claimed delivery again. It reports false where the claim was lost, and then changes nothing.
func (s *Store) again(ctx context.Context, c claim, body string, wait time.Duration) (bool, error) {
	n, err := againScript.Run(ctx, s.client, s.delay(c.sink), c.id, c.ends, wait.Milliseconds(), body).Int()
	if err != nil {
		return false, fmt.Errorf("park a delivery again: %w", err)
	}
	return n == 1, nil
}

// done removes a delivery from the delay queue, and tells whether the next of its ordering key became due by that.
func (s *Store) done(ctx context.Context, c claim) (next bool, err error) {
	n, err := doneScript.Run(ctx, s.client, s.delay(c.sink, s.keys.Failing(c.sink)), c.id).Int()
	if err != nil {
		return false, fmt.Errorf("remove a delivered delivery: %w", err)
	}
	return n == 1, nil
}

// addDead writes the dead letter of a fresh delivery. Beyond most, where that is not zero, the oldest go: it returns how
// many did.
func (s *Store) addDead(ctx context.Context, sink, id string, most int64, fields []any) (gone int64, err error) {
	keys := []string{s.keys.DeadLetters(sink), s.keys.DeadIndex(sink)}
	gone, err = deadScript.Run(ctx, s.client, keys, append([]any{id, most}, fields...)...).Int64()
	if err != nil {
		return 0, fmt.Errorf("write a dead letter: %w", err)
	}
	return gone, nil
}

// bury turns a claimed delivery into a dead letter, and is like addDead else. It reports false where the claim was lost.
func (s *Store) bury(ctx context.Context, c claim, most int64, fields []any) (gone int64, held bool, err error) {
	keys := s.delay(c.sink, s.keys.DeadLetters(c.sink), s.keys.DeadIndex(c.sink))
	gone, err = buryScript.Run(ctx, s.client, keys, append([]any{c.id, c.ends, most}, fields...)...).Int64()
	if err != nil {
		return 0, false, fmt.Errorf("write a dead letter: %w", err)
	}
	return max(gone, 0), gone >= 0, nil
}

// look is a question about one sink, and look's answer.
type look struct {
	sink   string
	most   int           // to claim
	claims bool          // whether slots were asked for, even if there was none
	lease  time.Duration // of the claims
	state  bool          // whether the state is wanted too
	asked  int           // when, as Pipeline.asking said
	held   bool          // the breaker lets nothing begin
	gated  bool          // the gate is why
	again  time.Duration // when it may, zero where it will say so

	claimed []claim
	groups  []string // whose digests are to be sealed
	lost    []string
	next    time.Duration // until the next is due, negative for none
	parked  int64         // how many there are
	stored  SinkState
	failing bool // whether there was a failure since the last success
	err     error
}

// look asks about all sinks in one go. An error of one sink is in its look.
func (s *Store) look(ctx context.Context, looks []*look) {
	claims := make([]*redis.Cmd, len(looks))
	states := make([]*redis.MapStringStringCmd, len(looks))
	failing := make([]*redis.IntCmd, len(looks))
	digests := make([]*redis.ZSliceCmd, len(looks))
	// EVAL and not EVALSHA: a pipeline cannot fall back when a restarted Redis has forgotten the script.
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, l := range looks {
			claims[i] = pipe.Eval(ctx, delaySource+claimSource, s.delay(l.sink), l.most, l.lease.Milliseconds())
			digests[i] = pipe.ZRangeWithScores(ctx, s.keys.Digests(l.sink), 0, int64(l.most))
			if l.state {
				states[i] = pipe.HGetAll(ctx, s.keys.SinkState(l.sink))
				failing[i] = pipe.Exists(ctx, s.keys.Failing(l.sink))
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
			e = l.read(reply)
		}
		if e == nil {
			var open []redis.Z
			if open, e = digests[i].Result(); e == nil {
				e = l.open(open, fmt.Sprint(reply[0]))
			}
		}
		if e == nil && l.state {
			var fields map[string]string
			fields, e = states[i].Result()
			l.stored, l.failing = sinkStateOf(fields), failing[i].Val() == 1
		}
		if e != nil {
			l.err = fmt.Errorf("look for due deliveries: %w", e)
		}
	}
}

var errReply = errors.New("redis answered something unexpected")

func (l *look) read(reply []any) error {
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
	l.parked = parked
	l.next = time.Duration(next) * time.Millisecond
	for _, id := range lost {
		l.lost = append(l.lost, fmt.Sprint(id))
	}
	for i := 0; i < len(claimed); i += 2 {
		id, ok1 := claimed[i].(string)
		body, ok2 := claimed[i+1].(string)
		if !ok1 || !ok2 {
			return errReply
		}
		l.claimed = append(l.claimed, claim{sink: l.sink, ends: ends, id: id, body: body})
	}
	return nil
}
