package eventlog

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
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
	// A pool whose server is gone checks once per second whether it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// testLog is a log with its connection.
type testLog struct {
	*redisconn.Conn
	*Log
}

func newTestLog(c *redisconn.Conn) *testLog { return &testLog{c, New(c, c.Keys(), Options{})} }

// open connects to s and closes with the test.
func open(t testing.TB, s *redistest.Server, o redisconn.Options) *testLog {
	t.Helper()
	return newTestLog(conntest.Open(t, s, o))
}

func openOptions(t testing.TB, o redisconn.Options) *testLog {
	t.Helper()
	return newTestLog(conntest.OpenOptions(t, o))
}

// onBoth runs a test on a real Redis and on a Redis in this process.
func onBoth(t *testing.T, test func(*testing.T, *testLog)) {
	t.Helper()
	conntest.OnBoth(t, func(t *testing.T, c *redisconn.Conn) { test(t, newTestLog(c)) })
}

func mustAppend(t testing.TB, l *testLog, list ...relay.Notification) {
	t.Helper()
	if _, err := l.Append(t.Context(), AppendRequest{Hub: list[0].Hub, Notifications: list}); err != nil {
		t.Fatal(err)
	}
}

// readLog returns the whole log of a partition.
func readLog(t testing.TB, l *testLog, partition int) []relay.Notification {
	t.Helper()
	list, err := l.Range(t.Context(), partition, "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
