package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

//go:embed scripts/claim.lua
var claimSource string

// PollRequest is a request for the due deliveries of one sink.
type PollRequest struct {
	Sink string
	// MaxClaims is the maximum number of claims and due digests in the result.
	MaxClaims int
	// Lease is the duration of the claims.
	Lease time.Duration
	// ReleaseOrder makes deliveries due that wait for a claimed one, from a time when the sink was ordered.
	ReleaseOrder bool
	// WithState requests State, IsFailing and Cooldown.
	WithState bool
	// WithBytes requests Bytes.
	WithBytes bool
	// CooldownName is the name of the rate; see [Rates.Cooldown]. If it is empty, Cooldown is 0.
	CooldownName string
}

// PollResult is the response to a [PollRequest].
type PollResult struct {
	Claims     []Claim
	DueDigests []string // groups whose digest can be sealed
	// LostIDs are deliveries without a record. They were removed.
	LostIDs []string
	// NextDue is the time until the next delivery or digest is due. It is negative if none is waiting.
	NextDue time.Duration
	// Depth is the number of scheduled deliveries, claimed ones included.
	Depth int64
	// Bytes is the memory of the scheduled deliveries.
	Bytes int64
	State SinkState
	// IsFailing is set if an attempt failed since the last success.
	IsFailing bool
	// Cooldown is the remaining time for which the destination has stopped all nodes, or 0.
	Cooldown time.Duration
	// Err applies to this sink only. The claims of a result with an error must not be used.
	Err error
}

// Poll sends all requests in one Redis pipeline and returns a result for each.
func (rt *Retries) Poll(ctx context.Context, requests []PollRequest) []PollResult {
	claims := make([]*redis.Cmd, len(requests))
	states := make([]*redis.MapStringStringCmd, len(requests))
	failing := make([]*redis.IntCmd, len(requests))
	cooldowns := make([]*redis.SliceCmd, len(requests))
	digests := make([]*redis.ZSliceCmd, len(requests))
	bytes := make([]*redis.IntCmd, len(requests))
	// EVAL instead of EVALSHA, because a pipeline cannot load a script that a restarted Redis does not have.
	_, err := rt.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, q := range requests {
			claims[i] = pipe.Eval(ctx, retryQueueSource+claimSource, rt.retryKeys(q.Sink),
				q.MaxClaims, q.Lease.Milliseconds(), q.ReleaseOrder)
			digests[i] = pipe.ZRangeWithScores(ctx, DigestsKey(rt.keys, q.Sink), 0, int64(q.MaxClaims))
			if q.WithState {
				states[i] = pipe.HGetAll(ctx, StateKey(rt.keys, q.Sink))
				failing[i] = pipe.Exists(ctx, FailureStartKey(rt.keys, q.Sink))
			}
			if q.WithBytes {
				bytes[i] = pipe.MemoryUsage(ctx, RecordsKey(rt.keys, q.Sink), redisconn.MemorySamples)
			}
			if q.WithState && q.CooldownName != "" {
				cooldowns[i] = pipe.HMGet(ctx, RateKey(rt.keys, q.CooldownName), "rest") // without the error of HGET for no cooldown
			}
		}
		return nil
	})
	results := make([]PollResult, len(requests))
	for i := range requests {
		q, r := &requests[i], &results[i]
		reply, e := claims[i].Slice()
		if e == nil && reply == nil {
			e = err
		}
		if e == nil {
			e = r.decode(q, reply)
		}
		if e == nil {
			var open []redis.Z
			if open, e = digests[i].Result(); e == nil {
				e = r.addDigests(q, open, fmt.Sprint(reply[0]))
			}
		}
		if e == nil && q.WithState {
			var fields map[string]string
			fields, e = states[i].Result()
			r.State, r.IsFailing = decodeSinkState(fields), failing[i].Val() == 1
			if cooldowns[i] != nil {
				r.addCooldown(q, cooldowns[i].Val(), fmt.Sprint(reply[0]))
			}
		}
		if e == nil && q.WithBytes {
			if r.Bytes, e = bytes[i].Result(); errors.Is(e, redis.Nil) { // no delivery is scheduled
				e = nil
			}
		}
		if e != nil {
			r.Err = redisconn.WrapError("poll due deliveries", e)
		}
	}
	return results
}

func (r *PollResult) decode(q *PollRequest, reply []any) error {
	if len(reply) != 5 {
		return errReply
	}
	leaseEnd, ok1 := reply[0].(string)
	next, ok2 := reply[1].(int64)
	lost, ok3 := reply[2].([]any)
	claimed, ok4 := reply[3].([]any)
	depth, ok5 := reply[4].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || len(claimed)%2 != 0 {
		return errReply
	}
	r.Depth = depth
	r.NextDue = time.Duration(next) * time.Millisecond
	for _, id := range lost {
		r.LostIDs = append(r.LostIDs, fmt.Sprint(id))
	}
	for i := 0; i < len(claimed); i += 2 {
		id, ok1 := claimed[i].(string)
		body, ok2 := claimed[i+1].(string)
		if !ok1 || !ok2 {
			return errReply
		}
		r.Claims = append(r.Claims, Claim{Sink: q.Sink, LeaseEnd: leaseEnd, ID: id, Body: body})
	}
	return nil
}

// pollTime returns the time of Redis at the poll, in unix milliseconds.
func pollTime(q *PollRequest, leaseEnd string) (int64, error) {
	end, err := strconv.ParseFloat(leaseEnd, 64)
	if err != nil {
		return 0, errReply
	}
	return int64(math.Ceil(end)) - q.Lease.Milliseconds(), nil
}

// addCooldown sets Cooldown from the stored end of a cooldown, in unix microseconds, if there is one.
func (r *PollResult) addCooldown(q *PollRequest, stored []any, leaseEnd string) {
	if len(stored) != 1 || stored[0] == nil {
		return
	}
	now, err := pollTime(q, leaseEnd)
	end, endErr := strconv.ParseInt(fmt.Sprint(stored[0]), 10, 64)
	if err == nil && endErr == nil {
		r.Cooldown = max(0, time.Duration(end)*time.Microsecond-time.Duration(now)*time.Millisecond)
	}
}

// addDigests adds the groups whose digest is due, as many as could still be claimed. It lowers NextDue if a digest is
// due earlier.
func (r *PollResult) addDigests(q *PollRequest, digests []redis.Z, leaseEnd string) error {
	now, err := pollTime(q, leaseEnd)
	if err != nil {
		return err
	}
	for _, z := range digests {
		group, ok := z.Member.(string)
		if !ok {
			return errReply
		}
		wait := time.Duration(max(0, int64(z.Score)-now)) * time.Millisecond
		if r.NextDue < 0 || wait < r.NextDue {
			r.NextDue = wait
		}
		if wait == 0 && len(r.Claims)+len(r.DueDigests) < q.MaxClaims {
			r.DueDigests = append(r.DueDigests, group)
		}
	}
	return nil
}
