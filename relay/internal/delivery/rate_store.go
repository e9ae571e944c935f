package delivery

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

var (
	//go:embed scripts/rate.lua
	rateSource string
	//go:embed scripts/throttle.lua
	restSource string

	rateScript = redis.NewScript(rateSource)
	restScript = redis.NewScript(restSource)
)

// rateSpec is a rate as Redis counts it.
type rateSpec struct {
	rate  relay.Rate
	burst int
}

// newRateSpec takes as a burst of zero what the rate allows in a second, at least one.
func newRateSpec(rate relay.Rate, burst int) rateSpec {
	if burst <= 0 {
		burst = max(1, perSecond(rate))
	}
	return rateSpec{rate, burst}
}

func perSecond(rate relay.Rate) int {
	if !rate.Limited() {
		return 0
	}
	return int(time.Duration(rate.Count) * time.Second / rate.Per)
}

// tokensPerRequest is how many attempts are asked for at once: a tenth of a second's worth, so that little is granted to a node
// that could begin at another.
func (p rateSpec) tokensPerRequest() int { return max(1, min(perSecond(p.rate)/10, p.burst)) }

// intervalMicros is the time between two attempts in microseconds, with what a time.Duration would cut off.
func (p rateSpec) intervalMicros() string {
	return fmt.Sprintf("%.3f", float64(p.rate.Per.Microseconds())/float64(p.rate.Count))
}

// tokenGrant is Redis' answer to who wants to begin.
type tokenGrant struct {
	tokens    int
	retryIn   time.Duration // until another may begin
	throttled bool          // since the destination has asked for it
}

// takeTokens asks for n attempts of a rate.
func (s *Store) takeTokens(ctx context.Context, name string, p rateSpec, n int) (tokenGrant, error) {
	reply, err := rateScript.Run(ctx, s.client, []string{s.keys.Rate(name)}, n, p.intervalMicros(), p.burst).Int64Slice()
	if err == nil && len(reply) != 3 {
		err = errReply
	}
	if err != nil {
		return tokenGrant{}, fmt.Errorf("ask whether the rate allows an attempt: %w", err)
	}
	return tokenGrant{int(reply[0]), time.Duration(reply[1]) * time.Microsecond, reply[2] == 1}, nil
}

// returnTokens gives back n attempts that did not begin. While the destination rests that changes nothing.
func (s *Store) returnTokens(ctx context.Context, name string, p rateSpec, n int) error {
	_, err := s.takeTokens(ctx, name, p, -n)
	return err
}

// chargeTokens counts n requests that were made besides those of granted attempts: as many fewer attempts begin later.
func (s *Store) chargeTokens(ctx context.Context, name string, p rateSpec, n int) error {
	if err := rateScript.Run(ctx, s.client, []string{s.keys.Rate(name)}, n, p.intervalMicros(), p.burst, "spent").Err(); err != nil {
		return fmt.Errorf("count further requests of a sink in its rate: %w", err)
	}
	return nil
}

// setThrottle keeps every attempt of a rate from beginning for a while, on all nodes.
func (s *Store) setThrottle(ctx context.Context, name string, p rateSpec, wait time.Duration) error {
	err := restScript.Run(ctx, s.client, []string{s.keys.Rate(name)}, wait.Microseconds(), p.intervalMicros(), p.burst).Err()
	if err != nil {
		return fmt.Errorf("store that a destination asked for a rest: %w", err)
	}
	return nil
}
