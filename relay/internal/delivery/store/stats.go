package store

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

//go:embed scripts/stats_add.lua
var addStatsSource string

// The fields of a sink's statistics in Redis.
const (
	FieldDelivered    = "delivered"
	FieldRetried      = "retried"
	FieldDropped      = "dropped"
	FieldMicroseconds = "microseconds" // duration of all attempts
	FieldFailedPrefix = "failed:"      // followed by the reason
	fieldLastSuccess  = "last_success"
	fieldLastError    = "last_error"
	fieldLastErrorAt  = "last_error_at"
)

// StatsStore stores the statistics of sinks.
type StatsStore struct{ db }

// StatsDelta contains what to add to the statistics of a sink.
type StatsDelta struct {
	Sink     string
	Counters map[string]int64 // by field
	// LastError is empty if no attempt failed. ErrorAge is the time since that attempt, because clocks of nodes differ.
	LastError string
	ErrorAge  time.Duration
}

func (d *StatsDelta) scriptArgs() []any {
	args := []any{"0", d.LastError, max(d.ErrorAge.Milliseconds(), 0)}
	if d.Counters[FieldDelivered] > 0 {
		args[0] = "1"
	}
	for field, n := range d.Counters {
		args = append(args, field, n)
	}
	return args
}

// Add adds to the statistics. It calls failed with the index of each delta that was not added.
func (s *StatsStore) Add(ctx context.Context, deltas []StatsDelta, failed func(i int)) error {
	if len(deltas) == 0 {
		return nil
	}
	replies := make([]*redis.Cmd, len(deltas))
	// EVAL instead of EVALSHA, because a pipeline cannot load a script that a restarted Redis does not have.
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range deltas {
			keys := []string{StatsKey(s.keys, deltas[i].Sink)}
			replies[i] = pipe.Eval(ctx, addStatsSource, keys, deltas[i].scriptArgs()...)
		}
		return nil
	})
	for i, reply := range replies {
		if reply.Err() != nil {
			failed(i)
		}
	}
	if err != nil {
		return redisconn.WrapError("add statistics of sinks", err)
	}
	return nil
}

// Stats are the statistics of a sink over all nodes and restarts. A killed node loses about a second of them.
type Stats struct {
	SinkState
	// Scheduled deliveries wait for another attempt.
	Scheduled, DeadLetters int64
	// OldestRetryAge is the age of the oldest scheduled delivery, or the time since the most overdue digest should have
	// been sealed. It is 0 if there is neither.
	OldestRetryAge     time.Duration
	Delivered, Retried int64
	// Dropped counts notifications and dead letters that exceeded the backlog.
	Dropped int64
	// Duration is the duration of all attempts together.
	Duration time.Duration
	// Failed counts failed attempts by reason. It may be nil.
	Failed map[string]int64
	// LastSuccess is zero if nothing was delivered.
	LastSuccess time.Time
	// LastError is the error of the last failed attempt, at most 512 bytes and without secrets. It stays after a
	// success.
	LastError   string
	LastErrorAt time.Time
	// InDigests is the number of notifications in open digests.
	InDigests int64
}

// Read returns the statistics of sinks in the same order.
func (s *StatsStore) Read(ctx context.Context, sinks []string) ([]Stats, error) {
	if len(sinks) == 0 {
		return nil, nil
	}
	n := len(sinks)
	states, counters := make([]*redis.MapStringStringCmd, n), make([]*redis.MapStringStringCmd, n)
	scheduled, deadLetters := make([]*redis.IntCmd, n), make([]*redis.IntCmd, n)
	arrivals, digests := make([]*redis.ZSliceCmd, n), make([]*redis.ZSliceCmd, n)
	inDigests := make([]*redis.SliceCmd, n)
	var now *redis.TimeCmd
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, sink := range sinks {
			states[i] = pipe.HGetAll(ctx, StateKey(s.keys, sink))
			inDigests[i] = pipe.MGet(ctx, DigestCountKey(s.keys, sink))
			scheduled[i] = pipe.ZCard(ctx, RetryKey(s.keys, sink))
			deadLetters[i] = pipe.XLen(ctx, DeadLettersKey(s.keys, sink))
			arrivals[i] = pipe.ZRangeWithScores(ctx, ArrivalKey(s.keys, sink), 0, 0)
			digests[i] = pipe.ZRangeWithScores(ctx, DigestsKey(s.keys, sink), 0, 0)
			counters[i] = pipe.HGetAll(ctx, StatsKey(s.keys, sink))
		}
		now = pipe.Time(ctx)
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError("read statistics of sinks", err)
	}
	list := make([]Stats, n)
	for i := range list {
		list[i] = Stats{
			SinkState: decodeSinkState(states[i].Val()),
			Scheduled: scheduled[i].Val(), DeadLetters: deadLetters[i].Val(),
		}
		list[i].decode(counters[i].Val())
		for _, first := range append(arrivals[i].Val(), digests[i].Val()...) {
			age := now.Val().Sub(time.UnixMilli(int64(first.Score)))
			list[i].OldestRetryAge = max(list[i].OldestRetryAge, age)
		}
		if values := inDigests[i].Val(); len(values) == 1 && values[0] != nil {
			list[i].InDigests, _ = strconv.ParseInt(fmt.Sprint(values[0]), 10, 64)
		}
	}
	return list, nil
}

func (st *Stats) decode(fields map[string]string) {
	st.LastError = fields[fieldLastError]
	for field, text := range fields {
		if field == fieldLastError {
			continue // may look like a number
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			continue
		}
		switch reason, failed := strings.CutPrefix(field, FieldFailedPrefix); {
		case field == FieldDelivered:
			st.Delivered = n
		case field == FieldRetried:
			st.Retried = n
		case field == FieldDropped:
			st.Dropped = n
		case field == FieldMicroseconds:
			st.Duration = time.Duration(n) * time.Microsecond
		case field == fieldLastSuccess:
			st.LastSuccess = time.UnixMilli(n).UTC()
		case field == fieldLastErrorAt:
			st.LastErrorAt = time.UnixMilli(n).UTC()
		case failed:
			if st.Failed == nil {
				st.Failed = make(map[string]int64)
			}
			st.Failed[reason] = n
		}
	}
}

// HasData reports whether Redis contains a state, scheduled deliveries, open digests or dead letters of a sink.
func (s *StatsStore) HasData(ctx context.Context, sink string) (bool, error) {
	list, err := s.Read(ctx, []string{sink})
	if err != nil {
		return false, err
	}
	st := list[0]
	return st.State != StateActive || st.Scheduled+st.InDigests+st.DeadLetters > 0, nil
}

var (
	//go:embed scripts/failure_start.lua
	recordFailureSource string

	recordFailureScript = redisconn.NewScript(recordFailureSource)
)

// Failures stores since when each sink has only failed, on all nodes together.
type Failures struct{ db }

// Record records a failure and returns the time since the first failure after the last success.
func (f *Failures) Record(ctx context.Context, sink string) (time.Duration, error) {
	ms, err := recordFailureScript.Run(ctx, f.client, []string{FailureStartKey(f.keys, sink)}).Int64()
	if err != nil {
		return 0, redisconn.WrapError("record failure", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// Clear records a success.
func (f *Failures) Clear(ctx context.Context, sink string) error { return f.clearFailures(ctx, sink) }

func (d db) clearFailures(ctx context.Context, sink string) error {
	if err := d.client.Del(ctx, FailureStartKey(d.keys, sink)).Err(); err != nil {
		return redisconn.WrapError("clear failures", err)
	}
	return nil
}
