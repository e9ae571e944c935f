package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// DispatchState is the state of a partition's dispatcher.
type DispatchState struct {
	// Position is the last log entry that was dispatched, or [streamid.Zero].
	Position string
	// Generation changes with the set of active sinks. [Store.Enqueue] rejects an old one.
	Generation int64
	// Active contains the sinks that the dispatcher serves, each with the position after which its entries begin.
	// That is after Position if the sink was registered at the end of the log.
	Active map[string]string
	// CatchingUp contains the sinks that must catch up first, each with the position after which its entries begin:
	// sinks that start at the beginning of the log, and sinks that were not configured for a while.
	CatchingUp map[string]string
}

// EnsureSinks registers sinks in a partition when a node starts, so their first entry does not depend on the node that
// dispatches. A new sink begins at the start of the log if its value in fromStart is true, otherwise at the end. Known
// sinks keep their position. EnsureSinks returns the position after which the entries of each sink begin.
func (s *Store) EnsureSinks(ctx context.Context, partition int, fromStart map[string]bool) (map[string]string, error) {
	state, err := s.runRegister(ctx, partition, fromStart, "0")
	if err != nil {
		return nil, redisconn.WrapError("register sinks", err)
	}
	maps.Copy(state.Active, state.CatchingUp)
	return state.Active, nil
}

// RegisterSinks makes the configured sinks the set that the partition's dispatcher serves. Only the holder of the
// dispatcher's lease may call it: when it starts, and after [Store.Enqueue] did not commit. A sink that leaves the set
// keeps its position.
func (s *Store) RegisterSinks(ctx context.Context, partition int, fromStart map[string]bool) (DispatchState, error) {
	state, err := s.runRegister(ctx, partition, fromStart, "1")
	return state, redisconn.WrapError("start to dispatch", err)
}

// runRegister runs the script. serve is "1" to replace the set of active sinks.
func (s *Store) runRegister(
	ctx context.Context, partition int, fromStart map[string]bool, serve string,
) (DispatchState, error) {
	names := make([]string, 0, len(fromStart))
	args := []any{serve}
	for name, atStart := range fromStart {
		names = append(names, name)
		start := "0"
		if atStart {
			start = "1"
		}
		args = append(args, name, start)
	}
	keys := []string{
		eventlog.Key(s.keys, partition), eventlog.DispatchPositionKey(s.keys, partition),
		SinkPositionsKey(s.keys, partition),
	}
	reply, err := registerScript.Run(ctx, s.conn.Commands(), keys, args...).StringSlice()
	if err != nil {
		return DispatchState{}, err
	}
	if len(reply) != 2+len(names) {
		return DispatchState{}, redisconn.ErrUnexpectedReply
	}
	state := DispatchState{Position: reply[0], Active: map[string]string{}, CatchingUp: map[string]string{}}
	if state.Generation, err = strconv.ParseInt(reply[1], 10, 64); err != nil {
		return DispatchState{}, redisconn.ErrUnexpectedReply
	}
	for i, name := range names {
		if position, active := strings.CutPrefix(reply[2+i], "+"); active {
			state.Active[name] = position
		} else {
			state.CatchingUp[name] = position
		}
	}
	return state, nil
}

// DetachSinks makes the dispatcher of a partition stop serving sinks. They catch up with the log from the dispatcher's
// position. It returns the new generation, or 0 if position or generation are not what the caller expects. It works in
// a full Redis.
func (s *Store) DetachSinks(
	ctx context.Context, partition int, position string, generation int64, sinks []string,
) (newGeneration int64, err error) {
	args := []any{position, generation}
	for _, sink := range sinks {
		args = append(args, sink)
	}
	keys := []string{eventlog.DispatchPositionKey(s.keys, partition), SinkPositionsKey(s.keys, partition)}
	reply, err := detachScript.Run(ctx, s.conn.Commands(), keys, args...).Text()
	if err != nil || reply == "" {
		return 0, redisconn.WrapError("detach sinks", err)
	}
	if newGeneration, err = strconv.ParseInt(reply, 10, 64); err != nil {
		return 0, redisconn.WrapError("detach sinks", redisconn.ErrUnexpectedReply)
	}
	return newGeneration, nil
}

// ForgetSink removes the state of a sink in a partition, including its queue. A sink with the same name is new then.
func (s *Store) ForgetSink(ctx context.Context, partition int, sink string) error {
	_, err := s.conn.Commands().TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HDel(ctx, SinkPositionsKey(s.keys, partition), sink)
		pipe.HIncrBy(ctx, eventlog.DispatchPositionKey(s.keys, partition), "generation", 1)
		pipe.HDel(ctx, eventlog.DispatchPositionKey(s.keys, partition), droppedField(s.keys, partition, sink))
		pipe.Unlink(ctx, Key(s.keys, sink, partition))
		return nil
	})
	return redisconn.WrapError("forget sink "+sink, err)
}

// Position returns the last log entry of a partition that was dispatched, or [streamid.Zero].
func (s *Store) Position(ctx context.Context, partition int) (string, error) {
	key := eventlog.DispatchPositionKey(s.keys, partition)
	position, err := s.conn.Commands().HGet(ctx, key, "position").Result()
	if errors.Is(err, redis.Nil) {
		return streamid.Zero, nil
	}
	return position, redisconn.WrapError("read the position of the dispatcher", err)
}

// FilledTo returns the position in a partition's log up to which a sink's queue was filled. Entries after it will be
// enqueued later. Of the entries before it, the sink may not have matched all.
func (s *Store) FilledTo(ctx context.Context, partition int, sink string) (string, error) {
	dispatched, err := s.Position(ctx, partition)
	if err != nil {
		return "", err
	}
	position, err := s.conn.Commands().HGet(ctx, SinkPositionsKey(s.keys, partition), sink).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", redisconn.WrapError("read the position of a sink", err)
	}
	position, active := strings.CutPrefix(position, "+")
	if active && streamid.Compare(position, dispatched) < 0 || position == "" {
		return dispatched, nil
	}
	return position, nil
}

// DroppedBefore returns the position of the oldest entry that was left when a sink's full queue last dropped entries. Those
// were before it. It is "" if the queue was never full.
func (s *Store) DroppedBefore(ctx context.Context, partition int, sink string) (string, error) {
	key := eventlog.DispatchPositionKey(s.keys, partition)
	position, err := s.conn.Commands().HGet(ctx, key, droppedField(s.keys, partition, sink)).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return position, redisconn.WrapError("read what a queue has dropped", err)
}

// droppedField is the field of [eventlog.DispatchPositionKey] with the result of [Store.DroppedBefore].
func droppedField(k keyspace.Space, partition int, sink string) string {
	return "dropped:" + Key(k, sink, partition)
}

// KnownSinks returns the sorted names of all sinks with a position in the log, configured or not.
func (s *Store) KnownSinks(ctx context.Context) ([]string, error) {
	replies := make([]*redis.StringSliceCmd, s.keys.Partitions())
	_, err := s.conn.Commands().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range replies {
			replies[p] = pipe.HKeys(ctx, SinkPositionsKey(s.keys, p))
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError("list the sinks", err)
	}
	var names []string
	for _, reply := range replies {
		names = append(names, reply.Val()...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
