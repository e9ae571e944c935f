package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Location says where a delivery is. The zero value means that it is neither scheduled nor in an open digest, and no dead
// letter.
type Location struct {
	// DueAt is the time of the next attempt of a scheduled delivery, or the end of the claim of a running one.
	DueAt time.Time
	// SealAt is the time at which the open digest that counts the event is sealed.
	SealAt time.Time
	// IsDead is set for a dead letter.
	IsDead bool
}

// Locate finds the delivery of an event to a sink. ids are the ID of the event and those of deliveries that contained it.
func (s *Store) Locate(ctx context.Context, sink, event string, ids []string) (Location, error) {
	const operation = "find a delivery"
	keys := s.db.keys
	digests, err := s.db.client.ZRangeWithScores(ctx, DigestsKey(keys, sink), 0, -1).Result()
	if err != nil {
		return Location{}, redisconn.WrapError(operation, err)
	}
	due, dead := make([]*redis.FloatCmd, len(ids)), make([]*redis.BoolCmd, len(ids))
	counted := make([]*redis.BoolCmd, len(digests))
	_, err = s.db.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, id := range ids {
			due[i] = pipe.ZScore(ctx, RetryKey(keys, sink), id)
			dead[i] = pipe.HExists(ctx, DeadLetterIndexKey(keys, sink), id)
		}
		for i, d := range digests {
			group, _ := d.Member.(string)
			counted[i] = pipe.HExists(ctx, DigestKey(keys, sink, group), "seen:"+event)
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
			l.DueAt = time.UnixMilli(int64(due[i].Val())).UTC()
		case !errors.Is(err, redis.Nil):
			return l, redisconn.WrapError(operation, err)
		}
		l.IsDead = l.IsDead || dead[i].Val()
	}
	for i, d := range digests {
		if counted[i].Val() {
			l.SealAt = time.UnixMilli(int64(d.Score)).UTC()
		}
	}
	return l, nil
}
