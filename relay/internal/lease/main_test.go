package lease

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

// testConn is a manager with its connection.
type testConn struct {
	*redisconn.Conn
	*Manager
}

func open(t testing.TB, s *redistest.Server, o redisconn.Options) *testConn {
	t.Helper()
	c := conntest.Open(t, s, o)
	return &testConn{c, NewManager(c, c.Keys())}
}
