package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Location is the place of a delivery in Redis. The zero value means that it is neither scheduled, nor in an open digest, nor a
// dead letter.
type Location struct {
	// IsScheduled is set for a delivery in the retry queue. DueAt is the time of its next attempt. It is zero while an attempt
	// runs, or if the delivery waits for another one with its ordering key.
	IsScheduled bool
	DueAt       time.Time
	IsRunning   bool
	IsBlocked   bool
	// SealAt is the time at which the open digest that counts the event, or has one of the IDs, is sealed.
	SealAt time.Time
	// IsDead is set for a dead letter.
	IsDead bool
}

// maxLocateDigests is the number of open digests of a sink that [Store.Locate] searches, the next ones first.
const maxLocateDigests = 1000

// Locate finds the delivery of an event to a sink. ids are the IDs of the event and of the deliveries that contained it.
func (s *Store) Locate(ctx context.Context, sink, event string, ids []string) (Location, error) {
	const operation = "find a delivery"
	keys := s.db.keys
	digests, err := s.db.client.ZRangeWithScores(ctx, DigestsKey(keys, sink), 0, maxLocateDigests-1).Result()
	if err != nil {
		return Location{}, redisconn.WrapError(operation, err)
	}
	due, dead := make([]*redis.FloatCmd, len(ids)), make([]*redis.BoolCmd, len(ids))
	open := make([]*redis.SliceCmd, len(digests))
	_, err = s.db.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, id := range ids {
			due[i] = pipe.ZScore(ctx, RetryKey(keys, sink), id)
			dead[i] = pipe.HExists(ctx, DeadLetterIndexKey(keys, sink), id)
		}
		for i, d := range digests {
			group, _ := d.Member.(string)
			open[i] = pipe.HMGet(ctx, DigestKey(keys, sink, group), "id", "seen:"+event)
		}
		return nil
	})
	var l Location
	if err != nil && !errors.Is(err, redis.Nil) {
		return l, redisconn.WrapError(operation, err)
	}
	for i := range ids {
		switch err := due[i].Err(); {
		case err == nil:
			l.setDue(due[i].Val())
		case !errors.Is(err, redis.Nil):
			return l, redisconn.WrapError(operation, err)
		}
		l.IsDead = l.IsDead || dead[i].Val()
	}
	for i, d := range digests {
		id, _ := open[i].Val()[0].(string)
		if counts := open[i].Val()[1] != nil; counts || slices.Contains(ids, id) {
			l.SealAt = time.UnixMilli(int64(d.Score)).UTC()
		}
	}
	return l, nil
}

// never is the due time of a blocked delivery in unix milliseconds. See retry_queue.lua.
const never = 8.9e12

// setDue decodes the score of a scheduled delivery. A fraction marks a claim.
func (l *Location) setDue(score float64) {
	whole, fraction := math.Modf(score)
	l.IsScheduled, l.IsRunning, l.IsBlocked = true, fraction != 0, whole >= never
	if !l.IsRunning && !l.IsBlocked {
		l.DueAt = time.UnixMilli(int64(whole)).UTC()
	}
}

// ScheduledDelivery is a delivery in the retry queue.
type ScheduledDelivery struct {
	Location
	ID string
	// Record is nil if it cannot be decoded.
	Record *Record
}

// The records of a list are read in steps of listStep, until they have more than maxListBytes.
const (
	listStep     = 20
	maxListBytes = 16 << 20
)

// List returns up to limit scheduled deliveries of a sink, the next due ones first, or fewer if they are large. after is the
// next of the previous list, or empty. next is empty at the end.
func (rt *Retries) List(ctx context.Context, sink, after string, limit int) (list []ScheduledDelivery, next string, err error) {
	const operation = "list scheduled deliveries"
	start, err := rt.rankAfter(ctx, sink, after)
	if err != nil {
		return nil, "", redisconn.WrapError(operation, err)
	}
	members, err := rt.client.ZRangeWithScores(ctx, RetryKey(rt.keys, sink), start, start+int64(limit)-1).Result()
	if err != nil {
		return nil, "", redisconn.WrapError(operation, err)
	}
	isEnd := len(members) < limit
	for size := 0; len(members) > 0 && size < maxListBytes; {
		step := members[:min(listStep, len(members))]
		members = members[len(step):]
		ids := make([]string, len(step))
		for i, m := range step {
			ids[i], _ = m.Member.(string)
		}
		bodies, err := rt.client.HMGet(ctx, RecordsKey(rt.keys, sink), ids...).Result()
		if err != nil {
			return nil, "", redisconn.WrapError(operation, err)
		}
		for i, m := range step {
			next = strconv.FormatFloat(m.Score, 'f', -1, 64) + "~" + ids[i]
			body, ok := bodies[i].(string)
			if !ok {
				continue // it was completed in the meantime
			}
			size += len(body)
			d := ScheduledDelivery{ID: ids[i]}
			d.setDue(m.Score)
			d.Record, _ = DecodeRecord(body)
			list = append(list, d)
		}
	}
	if isEnd && len(members) == 0 {
		next = ""
	}
	return list, next, nil
}

// rankAfter returns the rank that follows a position of [Retries.List]. If its delivery has left the queue or has another due
// time, it is the rank of the first delivery with the due time of the position, so some deliveries may be listed twice.
func (rt *Retries) rankAfter(ctx context.Context, sink, after string) (int64, error) {
	if after == "" {
		return 0, nil
	}
	score, id, ok := strings.Cut(after, "~")
	due, err := strconv.ParseFloat(score, 64)
	if err != nil || !ok || math.IsNaN(due) {
		return 0, fmt.Errorf("%w: after is not the value of next in an earlier response", ErrSelection)
	}
	stored, err := rt.client.ZScore(ctx, RetryKey(rt.keys, sink), id).Result()
	if err == nil && stored == due {
		var rank int64
		if rank, err = rt.client.ZRank(ctx, RetryKey(rt.keys, sink), id).Result(); err == nil {
			return rank + 1, nil
		}
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	return rt.client.ZCount(ctx, RetryKey(rt.keys, sink), "-inf", "("+score).Result()
}
