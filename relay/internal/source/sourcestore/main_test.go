package sourcestore

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
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

// testStore is a store with its connection.
type testStore struct {
	*redisconn.Conn
	*Store
}

func open(t testing.TB, s *redistest.Server, o redisconn.Options) *testStore {
	t.Helper()
	o.URL = s.URL()
	return openOptions(t, o)
}

func openOptions(t testing.TB, o redisconn.Options) *testStore {
	t.Helper()
	c := conntest.OpenOptions(t, o)
	return &testStore{c, New(c, c.Keys())}
}

// readLog returns the whole log of a partition.
func readLog(t testing.TB, b *testStore, partition int) []relay.Notification {
	t.Helper()
	list, err := eventlog.New(b.Conn, b.Keys(), eventlog.Options{}).Range(t.Context(), partition, "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
