package subscriber_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
)

func newClient(tb testing.TB, socket string) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{
		Network: "unix", Addr: socket, Protocol: 2, MaxRetries: -1, DisableIdentity: true, PoolSize: 256,
	})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// TestPubSub runs Watermill's conformance suite: once in strict order, once with many messages in flight. Its test of
// a server restart is disabled, because it has a data race. TestSubscriber_LosesNothingWhenRedisIsKilled replaces it.
func TestPubSub(t *testing.T) {
	t.Parallel()
	for _, setting := range []struct {
		name    string
		workers int
		ordered bool
	}{
		{"one worker", 1, true},
		{"many workers", 64, false},
	} {
		t.Run(setting.name, func(t *testing.T) {
			server := redistest.Start(t)
			commands, readers := newClient(t, server.Socket), newClient(t, server.Socket)
			construct := func(t *testing.T, group string, keepAcked bool) (message.Publisher, message.Subscriber) {
				t.Helper()
				pub := newPublisher(commands)
				sub, err := subscriber.New(subscriber.Config{
					Commands: commands, Readers: readers,
					Group: group, Consumer: watermill.NewShortUUID(), KeepAcked: keepAcked,
					MaxInFlight: func(string) int { return setting.workers },
					ClaimIdle:   3 * time.Second, ClaimInterval: 100 * time.Millisecond, NackDelay: time.Millisecond,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = sub.Close() }) // one test of the suite does not
				return pub, sub
			}
			tests.TestPubSub(t,
				tests.Features{
					ConsumerGroups: true, Persistent: true,
					GuaranteedOrder: setting.ordered, GuaranteedOrderWithSingleSubscriber: setting.ordered,
				},
				func(t *testing.T) (message.Publisher, message.Subscriber) { return construct(t, "test", false) },
				func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
					return construct(t, group, true)
				})
		})
	}
}
