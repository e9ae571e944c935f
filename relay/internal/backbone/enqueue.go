package backbone

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// errReply means that a script of ours answered something it cannot answer.
var errReply = errors.New("redis answered something unexpected")

// DispatchState is what the dispatcher of a partition has to do.
type DispatchState struct {
	// Position is the last log entry that was dispatched, "0-0" for none.
	Position string
	// Generation changes with the set of sinks served; [EnqueueRequest] refuses to work by an old one.
	Generation int64
	// Active holds the sinks that the dispatcher serves, each with the position after which its entries begin (which
	// may lie ahead of Position: the sink joined at the end of the log).
	Active map[string]string
	// CatchingUp holds the sinks that have to catch up first, each with the position after which it begins: those that
	// want the log from its start, and those that come back after another configuration ran.
	CatchingUp map[string]string
}

// EnsureSinks registers sinks in a partition when a node starts, so that a sink's beginning does not depend on who
// dispatches: at the log's start where the map says true, else at its end. Those known already keep their place. It
// returns the position up to which each has been served, or at which it joined.
func (b *Store) EnsureSinks(ctx context.Context, partition int, fromStart map[string]bool) (map[string]string, error) {
	s, err := b.registerSinks(ctx, partition, fromStart, false)
	if err != nil {
		return nil, wrapError("register sinks", err)
	}
	for name, at := range s.CatchingUp {
		s.Active[name] = at
	}
	return s.Active, nil
}

// RegisterSinks makes sinks, all that the caller's configuration knows, the set that the partition's dispatcher serves. Only
// the holder of the dispatcher's lease calls it: when it begins, and whenever [Store.Enqueue] did not commit. A sink
// that leaves the set keeps its place.
func (b *Store) RegisterSinks(ctx context.Context, partition int, fromStart map[string]bool) (DispatchState, error) {
	s, err := b.registerSinks(ctx, partition, fromStart, true)
	return s, wrapError("begin to dispatch", err)
}

func (b *Store) registerSinks(ctx context.Context, partition int, fromStart map[string]bool, serve bool) (DispatchState, error) {
	names := make([]string, 0, len(fromStart))
	args := []any{boolArg(serve)}
	for name, start := range fromStart {
		names = append(names, name)
		args = append(args, name, boolArg(start))
	}
	keys := []string{b.keys.Log(partition), b.keys.DispatchPosition(partition), b.keys.SinkPositions(partition)}
	reply, err := serveScript.Run(ctx, b.client, keys, args...).StringSlice()
	if err != nil {
		return DispatchState{}, err
	}
	if len(reply) != 2+len(names) {
		return DispatchState{}, errReply
	}
	s := DispatchState{Position: reply[0], Active: map[string]string{}, CatchingUp: map[string]string{}}
	if s.Generation, err = strconv.ParseInt(reply[1], 10, 64); err != nil {
		return DispatchState{}, errReply
	}
	for i, name := range names {
		if at, ok := strings.CutPrefix(reply[2+i], "+"); ok {
			s.Active[name] = at
		} else {
			s.CatchingUp[name] = at
		}
	}
	return s, nil
}

// ForgetSink removes what a partition knows of a sink, its queue included. Under the same name it is new again.
func (b *Store) ForgetSink(ctx context.Context, partition int, sink string) error {
	_, err := b.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HDel(ctx, b.keys.SinkPositions(partition), sink)
		pipe.HIncrBy(ctx, b.keys.DispatchPosition(partition), "generation", 1)
		pipe.Unlink(ctx, b.keys.Queue(sink, partition))
		return nil
	})
	return wrapError("forget sink "+sink, err)
}

// Position is the last log entry of a partition that was dispatched, "0-0" for none.
func (b *Store) Position(ctx context.Context, partition int) (string, error) {
	at, err := b.client.HGet(ctx, b.keys.DispatchPosition(partition), "position").Result()
	if errors.Is(err, redis.Nil) {
		return "0-0", nil
	}
	return at, wrapError("read the dispatcher's position", err)
}

// SinkMatch is a log entry and the sinks that want it, as indexes into Enqueue.Sinks.
type SinkMatch struct {
	ID    string
	Sinks []int
}

// EnqueueRequest moves a position in a partition's log and copies what matched on the way into the sinks' queues.
type EnqueueRequest struct {
	Partition int
	// CatchUpSink is empty for the dispatcher, or the name of the one sink that catches up.
	CatchUpSink string
	// From is where the caller believes the position to be, and To where it goes.
	From, To string
	// Generation is the dispatcher's [DispatchState.Generation]. Zero is not checked, which only a fixed set of sinks allows.
	Generation int64
	// EntriesCovered is how many log entries lie behind From up to and including To, matched or not. Zero where that is not
	// known; then trimming by length pauses until the lag is known again.
	EntriesCovered int
	// Sinks are the sinks that Matches name, and Backlogs the most entries that the queue of each may hold (in this
	// partition; zero for no limit).
	Sinks       []string
	MaxBacklogs []int64
	// Matches are in log order.
	Matches []SinkMatch
}

// EnqueueResult says what became of an [EnqueueRequest].
type EnqueueResult struct {
	// Committed is false when Position or Generation were not what the caller believed; then nothing was changed.
	Committed  bool
	Position   string
	Generation int64
	// CaughtUp means that the sink that was catching up is served by the dispatcher from now on.
	CaughtUp bool
	// Dropped counts for each of Enqueue.Sinks the oldest entries that its backlog had no room for.
	Dropped []int64
	// Trimmed counts matched entries that had left the log.
	Trimmed int
}

// Enqueue copies the matched entries into the queues under their own ids and moves the position, all at once or not at
// all. Repeating it, after any failure and from any node, enqueues nothing twice.
func (b *Store) Enqueue(ctx context.Context, e EnqueueRequest) (EnqueueResult, error) {
	if len(e.MaxBacklogs) != len(e.Sinks) {
		return EnqueueResult{}, fmt.Errorf("enqueue: %d backlogs for %d sinks", len(e.MaxBacklogs), len(e.Sinks))
	}
	keys := []string{b.keys.Log(e.Partition), b.keys.DispatchPosition(e.Partition), b.keys.SinkPositions(e.Partition)}
	// Only the queues that get something go to Redis: a thousand sinks that do not match cost nothing.
	slot := make([]int, len(e.Sinks))
	var used []int
	matches := make([]any, 0, 3*len(e.Matches))
	for _, m := range e.Matches {
		matches = append(matches, m.ID, len(m.Sinks))
		for _, s := range m.Sinks {
			if s < 0 || s >= len(e.Sinks) {
				return EnqueueResult{}, fmt.Errorf("enqueue: match %s names sink %d of %d", m.ID, s, len(e.Sinks))
			}
			if slot[s] == 0 {
				used = append(used, s)
				slot[s] = len(used)
				keys = append(keys, b.keys.Queue(e.Sinks[s], e.Partition))
			}
			matches = append(matches, slot[s])
		}
	}
	generation := ""
	if e.Generation != 0 {
		generation = strconv.FormatInt(e.Generation, 10)
	}
	args := append(make([]any, 0, 5+len(used)+len(matches)), e.CatchUpSink, e.From, e.To, generation, e.EntriesCovered)
	for _, s := range used {
		args = append(args, e.MaxBacklogs[s])
	}
	reply, err := enqueueScript.Run(ctx, b.client, keys, append(args, matches...)...).Slice()
	if err != nil {
		return EnqueueResult{}, wrapError("enqueue", err)
	}
	return enqueueResult(reply, len(e.Sinks), used)
}

func enqueueResult(reply []any, sinks int, used []int) (EnqueueResult, error) {
	r := EnqueueResult{Dropped: make([]int64, sinks)}
	if len(reply) < 5 {
		return r, errReply
	}
	committed, ok1 := reply[0].(int64)
	position, ok2 := reply[1].(string)
	text, ok3 := reply[2].(string)
	missing, ok4 := reply[3].(int64)
	joined, ok5 := reply[4].(int64)
	generation, err := strconv.ParseInt(text, 10, 64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || err != nil {
		return r, errReply
	}
	r.Committed, r.Position, r.Generation = committed == 1, strings.TrimPrefix(position, "+"), generation
	r.Trimmed, r.CaughtUp = int(missing), joined == 1
	for i, s := range used {
		if 5+i < len(reply) {
			r.Dropped[s], _ = reply[5+i].(int64)
		}
	}
	return r, nil
}

func boolArg(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
