package queue

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// notification and notifications return test data.
var (
	notification  = conntest.Notification
	notifications = conntest.Notifications
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

// testStores are the stores of a node.
type testStores struct {
	*redisconn.Conn
	*eventlog.Log
	*Store
	inbox *inbox.Store
}

func newTestStores(c *redisconn.Conn) *testStores {
	keys := c.Keys()
	return &testStores{c, eventlog.New(c, keys, eventlog.Options{}), NewStore(c, keys), inbox.NewStore(c, keys)}
}

// streams are the streams of a topic for a subscriber.
func (t *testStores) streams(sink string) []string { return Keys(t.Keys(), sink) }

func open(t testing.TB, s *redistest.Server, o redisconn.Options) *testStores {
	t.Helper()
	return newTestStores(conntest.Open(t, s, o))
}

// onBoth runs a test on a real Redis and on a Redis in this process.
func onBoth(t *testing.T, test func(*testing.T, *testStores)) {
	t.Helper()
	conntest.OnBoth(t, func(t *testing.T, c *redisconn.Conn) { test(t, newTestStores(c)) })
}

func mustAppend(t testing.TB, b *testStores, list ...relay.Notification) {
	t.Helper()
	if _, err := b.Append(t.Context(), eventlog.AppendRequest{Hub: list[0].Hub, Notifications: list}); err != nil {
		t.Fatal(err)
	}
}

// readLog returns the whole log of a partition.
func readLog(t testing.TB, b *testStores, partition int) []relay.Notification {
	t.Helper()
	list, err := b.Range(t.Context(), partition, "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
