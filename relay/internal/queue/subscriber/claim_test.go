package subscriber_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

// claimGate is a Redis hook that delays searches for idle entries until release is closed.
type claimGate struct {
	searching chan struct{} // receives at the start of each search, if there is space
	release   <-chan struct{}
}

var _ redis.Hook = (*claimGate)(nil)

func (g *claimGate) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (g *claimGate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (g *claimGate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "xautoclaim" {
			select {
			case g.searching <- struct{}{}:
			default:
			}
			<-g.release
		}
		return next(ctx, cmds)
	}
}

// A subscription that ends during a search for idle entries releases its entries, which the search then finds.
func TestSubscriber_ClaimsOwnReleasedEntries(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	held, release := context.WithCancel(t.Context())
	defer release()
	gate := &claimGate{searching: make(chan struct{}, 1), release: held.Done()}
	commands := newClient(t, r.server.Socket)
	commands.AddHook(gate)
	var text testkit.Buffer
	s := r.subscriber(func(c *subscriber.Config) {
		c.Commands = commands
		c.Log = slog.New(slog.NewTextHandler(&text, nil))
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.publish("q", 0, 3) // before the first read, which then returns all of them
	c, err := s.Subscribe(ctx, "q")
	if err != nil {
		t.Fatal(err)
	}
	<-gate.searching
	next(t, c).Nack()
	cancel()
	all := &redis.XPendingExtArgs{Stream: "q", Group: "sinks", Start: "-", End: "+", Count: 10}
	waitForIdle := func(what string, ok func(time.Duration) bool) {
		testkit.WaitFor(t, what, func() bool {
			list := r.redis.XPendingExt(t.Context(), all).Val()
			return len(list) == 3 && ok(list[2].Idle)
		})
	}
	waitForIdle("the entries to be released", func(idle time.Duration) bool { return idle > time.Hour })
	release()
	waitForIdle("the entries to be claimed", func(idle time.Duration) bool { return idle < time.Hour })
	ackAll(t, r.subscribe(s, "q"), 0, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "another consumer") {
		t.Errorf("the log describes own entries as entries of another consumer:\n%s", text.String())
	}
}
