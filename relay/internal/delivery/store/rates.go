package store

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

var (
	//go:embed scripts/rate.lua
	rateSource string
	//go:embed scripts/throttle.lua
	cooldownSource string
	//go:embed scripts/end_cooldown.lua
	endCooldownSource string

	rateScript        = redisconn.NewScript(rateSource)
	cooldownScript    = redisconn.NewScript(cooldownSource)
	endCooldownScript = redisconn.NewScript(endCooldownSource)
)

// Rates stores rate limits, which all nodes share.
type Rates struct{ db }

// RateLimit is a rate and the number of attempts that may start at once after a pause.
type RateLimit struct {
	relay.Rate
	Burst int
}

// intervalMicros is the time between two attempts in microseconds, with the fraction that a time.Duration would lose. It is 0
// without a limit.
func (l RateLimit) intervalMicros() string {
	if !l.Limited() {
		return "0"
	}
	return fmt.Sprintf("%.3f", float64(l.Per.Microseconds())/float64(l.Count))
}

// Grant is the result of [Rates.Take].
type Grant struct {
	// Tokens is the number of attempts that may start now.
	Tokens int
	// RetryIn is the time until another one may start.
	RetryIn time.Duration
	// Cooldown is set while the destination has asked for a pause.
	Cooldown bool
}

// Take requests n attempts of the rate with this name.
func (r *Rates) Take(ctx context.Context, name string, l RateLimit, n int) (Grant, error) {
	keys := []string{RateKey(r.keys, name)}
	reply, err := rateScript.Run(ctx, r.client, keys, n, l.intervalMicros(), l.Burst).Int64Slice()
	if err == nil && len(reply) != 3 {
		err = errReply
	}
	if err != nil {
		return Grant{}, redisconn.WrapError("take rate tokens", err)
	}
	return Grant{int(reply[0]), time.Duration(reply[1]) * time.Microsecond, reply[2] == 1}, nil
}

// Return returns n attempts that did not start. It changes nothing during a cooldown.
func (r *Rates) Return(ctx context.Context, name string, l RateLimit, n int) error {
	_, err := r.Take(ctx, name, l, -n)
	return err
}

// Charge counts n requests that were made in addition to granted attempts, so as many attempts start later.
func (r *Rates) Charge(ctx context.Context, name string, l RateLimit, n int) error {
	keys := []string{RateKey(r.keys, name)}
	if err := rateScript.Run(ctx, r.client, keys, n, l.intervalMicros(), l.Burst, "spent").Err(); err != nil {
		return redisconn.WrapError("charge rate tokens", err)
	}
	return nil
}

// Cooldown stops all attempts of a rate on all nodes for a time. Nodes learn it from [Rates.Take] and [Retries.Poll].
func (r *Rates) Cooldown(ctx context.Context, name string, l RateLimit, wait time.Duration) error {
	keys := []string{RateKey(r.keys, name)}
	err := cooldownScript.Run(ctx, r.client, keys, wait.Microseconds(), l.intervalMicros(), l.Burst).Err()
	if err != nil {
		return redisconn.WrapError("store cooldown", err)
	}
	return nil
}

// EndCooldown ends the cooldown of a rate. Nodes that follow it already end it when they notice [States.Resume].
func (r *Rates) EndCooldown(ctx context.Context, name string, l RateLimit) error {
	keys := []string{RateKey(r.keys, name)}
	if err := endCooldownScript.Run(ctx, r.client, keys, l.intervalMicros(), l.Burst).Err(); err != nil {
		return redisconn.WrapError("end cooldown", err)
	}
	return nil
}
