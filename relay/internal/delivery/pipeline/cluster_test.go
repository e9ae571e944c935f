package pipeline

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// newClusterEnv starts a Redis Cluster of one node, which also rejects a command with keys of several slots.
func newClusterEnv(t *testing.T) *env {
	t.Helper()
	port, bus := redistest.FreePort(t), redistest.FreePort(t)
	e := &env{
		t: t,
		server: redistest.Start(
			t,
			"--bind",
			"127.0.0.1",
			"--cluster-enabled",
			"yes",
			"--port",
			port,
			"--cluster-port",
			bus,
		),
	}
	e.client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: e.server.Socket, MaxRetries: -1, Protocol: 2, DisableIdentity: true,
	})
	t.Cleanup(func() { _ = e.client.Close() })
	if err := e.client.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	keys, err := keyspace.New("hubrelay", 1, true)
	if err != nil {
		t.Fatal(err)
	}
	e.store = store.New(e.client, keys)
	testkit.WaitFor(
		t,
		"the cluster is up",
		func() bool { return e.client.Set(t.Context(), "x", "", time.Second).Err() == nil },
	)
	return e
}

// A digest, its dead letter and its replay, with a rate, in a cluster.
func TestDigest_Cluster(t *testing.T) {
	t.Parallel()
	e := newClusterEnv(t)
	sink := &fakeSink{
		answer: answers(
			errFar,
			relay.RetryAfter(&relay.ResponseError{Status: 429}, time.Millisecond),
			errFar,
			nil,
		),
	}
	p := e.pipeline(sink, func(o *Options) {
		gathering(50*time.Millisecond, 1, ByAccount)(o) // a digest of one account is not split
		o.Schedule.MaxAttempts = 3
		o.Rate = perSec(1000)
	})
	for i := range 3 {
		if err := handleDelivery(t.Context(), p, event(i, "a.b", "h1")); err != nil {
			t.Fatal(err)
		}
	}
	e.retries(p) // they seal digests that are due
	figures := func() store.Stats {
		f, err := e.store.Stats.Read(t.Context(), []string{"s"})
		if err != nil {
			t.Fatal(err)
		}
		return f[0]
	}
	testkit.WaitFor(
		t,
		"a dead letter",
		func() bool { f := figures(); return f.DeadLetters == 1 && f.Scheduled+f.InDigests == 0 },
	)
	if got, err := e.replayAllDeadLetters(store.ReplayOptions{}); err != nil ||
		got.Done != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	testkit.WaitFor(
		t,
		"delivered",
		func() bool { f := figures(); return sink.attempts("") == 4 && f.Scheduled+f.DeadLetters == 0 },
	)
	if d := sink.deliveries()[3]; d.Digest == nil || d.Digest.Count != 3 || len(d.Notifications) != 1 {
		t.Errorf("%+v", d.Digest)
	}
	if err := handleDelivery(t.Context(), p, event(9, "a.b", "h1")); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Forget(t.Context(), "s", true); err != nil {
		t.Error(err)
	}
}
