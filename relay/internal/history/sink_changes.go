package history

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// maxSinkChanges is the number of changes that are kept for a sink.
	maxSinkChanges = 100
	// maxPendingChanges is the number of changes of all sinks that wait to be stored.
	maxPendingChanges = 1000
)

// SinkChangesKey is the stream of the changes of a sink's state.
func SinkChangesKey(k keyspace.Space, sink string) string { return k.Global("history:sink:" + sink) }

// SinkChange is a change of the state of a sink.
type SinkChange struct {
	Sink  string
	State string
	// Reason is a sentence, and may be empty.
	Reason string
	// Actor is who changed the state, such as "admin alice" or "relay".
	Actor string
	// Node is the node whose state changed, or empty if the change applies to all nodes.
	Node string
	// Time is set when the change is read.
	Time time.Time
}

// RecordSinkChange records a change of the state of a sink.
func (r *Recorder) RecordSinkChange(c SinkChange) {
	if r == nil {
		return
	}
	c.Reason = truncateError(c.Reason)
	r.changesMu.Lock()
	if len(r.changes) < maxPendingChanges {
		r.changes = append(r.changes, c)
	}
	r.changesMu.Unlock()
	signalOn(r.dirty)
}

// flushChanges stores the pending changes. After an error it drops them.
func (r *Recorder) flushChanges(ctx context.Context) {
	r.changesMu.Lock()
	changes := r.changes
	r.changes = nil
	r.changesMu.Unlock()
	if len(changes) == 0 {
		return
	}
	_, err := r.opts.Store.conn.Commands().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, c := range changes {
			pipe.XAdd(ctx, &redis.XAddArgs{
				Stream: SinkChangesKey(r.opts.Store.keys, c.Sink), MaxLen: maxSinkChanges,
				Values: []any{"state", c.State, "reason", c.Reason, "actor", c.Actor, "node", c.Node},
			})
		}
		return nil
	})
	if err != nil {
		r.opts.Log.Debug("changes of sinks could not be stored", "error", err)
	}
}

// SinkChanges returns the newest changes of a sink's state, the newest first.
func (s *Store) SinkChanges(ctx context.Context, sink string, limit int) ([]SinkChange, error) {
	entries, err := s.conn.Commands().XRevRangeN(ctx, SinkChangesKey(s.keys, sink), "+", "-", int64(limit)).Result()
	if err != nil {
		return nil, redisconn.WrapError("read the changes of a sink", err)
	}
	var list []SinkChange
	for _, e := range entries {
		text := func(name string) string { v, _ := e.Values[name].(string); return v }
		at, _ := streamid.ParsePosition(e.ID)
		list = append(list, SinkChange{
			Sink: sink, State: text("state"), Reason: text("reason"), Actor: text("actor"), Node: text("node"),
			Time: at.Time(),
		})
	}
	return list, nil
}

// ForgetSink deletes the changes of a sink.
func (s *Store) ForgetSink(ctx context.Context, sink string) error {
	return redisconn.WrapError("delete the changes of a sink", s.conn.Commands().Unlink(ctx, SinkChangesKey(s.keys, sink)).Err())
}
