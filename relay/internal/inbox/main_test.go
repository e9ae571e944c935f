package inbox

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// notification returns test data.
var notification = conntest.Notification

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

// testInbox is an inbox with its connection.
type testInbox struct {
	*redisconn.Conn
	*Store
}

// Keys returns the names of the keys.
func (t *testInbox) Keys() keyspace.Space { return t.Store.Keys() }

func newTestInbox(c *redisconn.Conn) *testInbox { return &testInbox{c, NewStore(c, c.Keys())} }

func open(t testing.TB, s *redistest.Server, o redisconn.Options) *testInbox {
	t.Helper()
	return newTestInbox(conntest.Open(t, s, o))
}

// onBoth runs a test on a real Redis and on a Redis in this process.
func onBoth(t *testing.T, test func(*testing.T, *testInbox)) {
	t.Helper()
	conntest.OnBoth(t, func(t *testing.T, c *redisconn.Conn) { test(t, newTestInbox(c)) })
}

// readLog returns the whole log of a partition.
func readLog(t testing.TB, b *testInbox, partition int) []relay.Notification {
	t.Helper()
	list, err := eventlog.New(b.Conn, b.Keys(), eventlog.Options{}).Range(t.Context(), partition, "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
