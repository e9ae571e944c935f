package migration

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests spend most of their time waiting
	goleak.VerifyTestMain(m)
}

// newRedis connects to a new Redis and uses several partitions.
func newRedis(t *testing.T) *redisconn.Conn {
	t.Helper()
	return open(t, redistest.Start(t).URL())
}

// newClusterRedis connects to a new Redis Cluster with one node. Even such a cluster rejects commands and scripts
// across slots.
func newClusterRedis(t *testing.T) *redisconn.Conn {
	t.Helper()
	port, bus := redistest.FreePort(t), redistest.FreePort(t)
	s := redistest.Start(t, "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--port", port, "--cluster-port", bus)
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, Protocol: 2, DisableIdentity: true})
	defer func() { _ = client.Close() }()
	if err := client.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	return open(t, "redis+cluster://127.0.0.1:"+port)
}

// forEachRedis runs a subtest with a single Redis and with a Redis Cluster.
func forEachRedis(t *testing.T, test func(*testing.T, *redisconn.Conn)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) *redisconn.Conn{"one redis": newRedis, "cluster": newClusterRedis} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func open(t *testing.T, url string) *redisconn.Conn {
	t.Helper()
	return openOptions(t, redisconn.Options{URL: url, Partitions: 3})
}

func openOptions(t *testing.T, o redisconn.Options) *redisconn.Conn {
	t.Helper()
	b, err := redisconn.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}
