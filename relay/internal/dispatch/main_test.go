package dispatch

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/queue"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

type env struct {
	t      testing.TB
	server *redistest.Server
	b      *redisconn.Conn
	log    *eventlog.Log
	queues *queue.Store
}

func newEnv(t testing.TB) *env {
	t.Helper()
	e := &env{t: t, server: redistest.Start(t)}
	e.b = conntest.Open(t, e.server, redisconn.Options{})
	e.log, e.queues = eventlog.New(e.b, e.b.Keys(), eventlog.Options{}), queue.NewStore(e.b, e.b.Keys())
	return e
}

func (e *env) publish(topic, hub string, n int) {
	e.t.Helper()
	var list []relay.Notification
	for i := range n {
		list = append(list, relay.Notification{
			ID: fmt.Sprintf("%s-%s-%d", hub, topic, i), Topic: topic, Hub: hub, Data: []byte(strconv.Itoa(i)),
		})
	}
	if _, err := e.log.Append(context.Background(), eventlog.AppendRequest{Hub: hub, Notifications: list}); err != nil {
		e.t.Fatal(err)
	}
}

// readQueue returns the IDs in the queue of a sink.
func (e *env) readQueue(sink string) []string {
	e.t.Helper()
	list, err := e.b.Commands().XRange(context.Background(), queue.Key(e.b.Keys(), sink, 0), "-", "+").Result()
	if err != nil {
		e.t.Fatal(err)
	}
	var ids []string
	for _, m := range list {
		ids = append(ids, fmt.Sprint(m.Values["id"]))
	}
	return ids
}

func (e *env) queueLength(sink string) int64 {
	n, err := e.b.Commands().XLen(context.Background(), queue.Key(e.b.Keys(), sink, 0)).Result()
	if err != nil {
		return -1
	}
	return n
}

func (e *env) options(sinks ...Sink) Options {
	return Options{
		Partitions: 1, Matcher: NewMatcher(sinks), Log: e.log, Queues: e.queues,
		Lease: lease.NewManager(e.b, e.b.Keys()).Lease("dispatch:0", time.Second),
	}
}

// run starts a dispatcher, and with tail a log reader. stop may be called twice.
func (e *env) run(o Options, tail bool) (stop func()) {
	e.t.Helper()
	d, err := NewDispatcher(o)
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.Run(ctx); err != nil {
			e.t.Error(err)
		}
	})
	if tail {
		_, follow, err := e.log.TailFrom(ctx, 0)
		if err != nil {
			e.t.Fatal(err)
		}
		wg.Go(func() { _ = follow(ctx, d.Offer) })
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	e.t.Cleanup(stop)
	return stop
}
