package deliver

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
	//go:embed scripts/rest.lua
	restSource string

	rateScript = redis.NewScript(rateSource)
	restScript = redis.NewScript(restSource)
)

// pace is a rate as Redis counts it.
type pace struct {
	rate  relay.Rate
	burst int
}

// newPace takes as a burst of zero what the rate allows in a second, at least one.
func newPace(rate relay.Rate, burst int) pace {
	if burst <= 0 {
		burst = max(1, perSecond(rate))
	}
	return pace{rate, burst}
}

func perSecond(rate relay.Rate) int {
	if !rate.Limited() {
		return 0
	}
	return int(time.Duration(rate.Count) * time.Second / rate.Per)
}

// batch is how many attempts are asked for at once: a tenth of a second's worth, so that little is granted to a node
// that could begin at another.
func (p pace) batch() int { return max(1, min(perSecond(p.rate)/10, p.burst)) }

// interval is the time between two attempts in microseconds, with what a time.Duration would cut off.
func (p pace) interval() string {
	return fmt.Sprintf("%.3f", float64(p.rate.Per.Microseconds())/float64(p.rate.Count))
}

// grant is Redis' answer to who wants to begin.
type grant struct {
	n    int
	next time.Duration // until another may begin
	rest bool          // since the destination has asked for it
}

// begin asks for n attempts of a rate.
func (s *Store) begin(ctx context.Context, name string, p pace, n int) (grant, error) {
	reply, err := rateScript.Run(ctx, s.client, []string{s.keys.Rate(name)}, n, p.interval(), p.burst).Int64Slice()
	if err == nil && len(reply) != 3 {
		err = errReply
	}
	if err != nil {
		return grant{}, fmt.Errorf("ask whether the rate allows an attempt: %w", err)
	}
	return grant{int(reply[0]), time.Duration(reply[1]) * time.Microsecond, reply[2] == 1}, nil
}

// unbegin gives back n attempts that did not begin. While the destination rests that changes nothing.
func (s *Store) unbegin(ctx context.Context, name string, p pace, n int) error {
	_, err := s.begin(ctx, name, p, -n)
	return err
}

// spend counts n requests that were made besides those of granted attempts: as many fewer attempts begin later.
func (s *Store) spend(ctx context.Context, name string, p pace, n int) error {
	if err := rateScript.Run(ctx, s.client, []string{s.keys.Rate(name)}, n, p.interval(), p.burst, "spent").Err(); err != nil {
		return fmt.Errorf("count further requests of a sink in its rate: %w", err)
	}
	return nil
}

// rest keeps every attempt of a rate from beginning for a while, on all nodes.
func (s *Store) rest(ctx context.Context, name string, p pace, wait time.Duration) error {
	err := restScript.Run(ctx, s.client, []string{s.keys.Rate(name)}, wait.Microseconds(), p.interval(), p.burst).Err()
	if err != nil {
		return fmt.Errorf("store that a destination asked for a rest: %w", err)
	}
	return nil
}
