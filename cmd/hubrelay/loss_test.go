package main_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// The durations of the tests. `HUBRELAY_TEST_SEED=7 go test ./cmd/hubrelay -run NothingIsLost -loss 60s -loss-cluster
// 60s` uses other failures, more time, and a cluster.
var (
	loss          = flag.Duration("loss", 8*time.Second, "how long TestLongNothingIsLost kills nodes and Redis")
	lossInCluster = flag.Duration("loss-cluster", 15*time.Second,
		"how long TestLongNothingIsLostInCluster kills nodes and masters")
)

// lossHubs are the hubs. The last one uses the inbox.
var lossHubs = []string{"hub-a", "hub-b", "hub-c", "hub-d", "hub-e"}

// losses is a test with three nodes on one Redis. All but the first node are killed, and Redis too.
type losses struct {
	t      *testing.T
	long   time.Duration
	random *rand.Rand
	deck   []int // remaining failures of a round
	dealt  int
	redis  victim
	text   daemonConfig
	nodes  []*atomic.Pointer[daemon]
	way    *testkit.Proxy // to any of the nodes
	hooks  *receiver

	followers []*lossFollower
	flooded   atomic.Value // the hub whose notifications are many and large, or ""

	begun     map[string]*atomic.Int64 // last number in publication, by hub
	accepted  map[string]*atomic.Int64
	publishes sync.WaitGroup
	stop      context.CancelFunc
}

// TestLongNothingIsLost publishes numbers to several hubs while followers of every kind disconnect and resume, and
// kills nodes and Redis. The log contains every accepted number once and in order. Each follower receives the log
// from its start position without gaps, repeats and resyncs. Some stop reading until they are closed with 1013.
// Finally, a node that was never killed has as many goroutines and connections as before.
func TestLongNothingIsLost(t *testing.T) {
	t.Parallel()
	nothingIsLost(t, oneRedis(t), *loss)
}

func nothingIsLost(t *testing.T, on victim, long time.Duration) {
	t.Helper()
	seed := fromEnv(t, "HUBRELAY_TEST_SEED", 1)
	t.Logf("HUBRELAY_TEST_SEED=%d for %s", seed, long)
	l := newLosses(t, seed, on, long)
	before := l.warmUp()
	l.follow(seed)
	l.publish()
	blows := l.storm(long)
	l.stop()
	l.publishes.Wait()
	want := l.checkLog()
	connections, heard, tooSlow := 0, 0, 0
	for _, f := range l.followers {
		testkit.Eventually(t, f.name+" to receive everything", func() error { return f.complete(want) })
		c, n, slow := f.figures()
		connections, heard, tooSlow = connections+c, heard+n, tooSlow+slow
	}
	for _, f := range l.followers {
		f.end()
	}
	for _, f := range l.followers { // a superfluous notification can arrive last
		if err := f.complete(want); err != nil {
			t.Error(err)
		}
	}
	l.checkHooks()
	t.Logf("%d published, %d followers connected %d times, of which %d ended with 1013, and received %d; failures: %v",
		total(want), len(l.followers), connections, tooSlow, heard, blows)
	if connections < 2*len(l.followers) {
		t.Error("hardly anybody came back, so nothing was proved")
	}
	if l.dealt >= l.failureCount() && tooSlow == 0 {
		t.Error("all failures happened, but no client was closed with 1013")
	}
	var now idleResources
	err := testkit.Poll(func() error {
		now = l.measureIdle()
		return before.restored(now)
	})
	if err != nil {
		t.Errorf("the node that was not killed is not at rest: %v\n%s\nbefore:\n%s", err, now.profile, before.profile)
	}
}

func newLosses(t *testing.T, seed uint64, on victim, long time.Duration) *losses {
	t.Helper()
	l := &losses{
		t: t, long: long, random: rand.New(rand.NewPCG(seed, 0)), redis: on,
		begun: make(map[string]*atomic.Int64), accepted: make(map[string]*atomic.Int64),
	}
	l.flooded.Store("")
	l.hooks = receive(t, nil)
	// Another node retries a claimed delivery after the time limit of its attempt.
	l.text = daemonConfig{
		redis: fmt.Sprintf("url: %q, partitions: %d", l.redis.url, 1+l.random.IntN(3)),
		sinks: webhookSink("hook", l.hooks.url+"/", ", timeout: 5s") +
			"\nwebsocket: {queue: 64KiB, compression: {enabled: true, min_size: 64}}", // for followers that request it
	}
	for range 3 {
		l.nodes = append(l.nodes, &atomic.Pointer[daemon]{})
	}
	l.way = testkit.StartProxy(t, func() string {
		for {
			if d := l.nodes[rand.IntN(len(l.nodes))].Load(); d != nil { // only during the start
				return d.Public
			}
		}
	})
	for _, hub := range lossHubs {
		l.begun[hub], l.accepted[hub] = new(atomic.Int64), new(atomic.Int64)
	}
	return l
}

// warmUp starts the nodes, uses every function of the first one, and returns its idle resources.
func (l *losses) warmUp() idleResources {
	l.t.Helper()
	for _, node := range l.nodes {
		node.Store(serve(l.t, l.text))
		if node != l.nodes[0] {
			continue
		}
		for i, hub := range lossHubs {
			if err := l.batch(hub, make([]string, 3), l.through(i)); err != nil {
				l.t.Fatal(err)
			}
		}
		l.checkHooks()
	}
	return l.measureIdle()
}

// through returns how a hub is published to.
func (l *losses) through(hub int) func(hub string, first int, list []string) (bool, error) {
	if hub == len(lossHubs)-1 {
		return l.add
	}
	return l.post
}

// follow starts followers of every kind. The second half starts later.
func (l *losses) follow(seed uint64) {
	late := make(chan struct{})
	timer := time.AfterFunc(l.long/3, func() { close(late) })
	l.t.Cleanup(func() { timer.Stop() })
	for round := range 2 {
		for kind := range followerKinds {
			for _, hub := range append(slices.Clone(lossHubs), "") {
				f := newLossFollower(l, kind, hub, rand.New(rand.NewPCG(seed, uint64(1+len(l.followers)))))
				l.followers = append(l.followers, &f)
				if round == 0 {
					f.start(nil)
				} else {
					f.start(late)
				}
			}
		}
	}
	l.t.Cleanup(func() {
		for _, f := range l.followers {
			f.end()
		}
	})
}

// publish publishes numbers to each hub, one batch at a time until it is accepted.
func (l *losses) publish() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.t.Cleanup(stop)
	for i, hub := range lossHubs {
		random := rand.New(rand.NewPCG(l.random.Uint64(), 0))
		l.publishes.Go(func() {
			for ctx.Err() == nil {
				if err := l.batch(hub, l.paddings(hub, random), l.through(i)); err != nil {
					l.t.Errorf("publish to %s: %v", hub, err)
					return
				}
				await.Duration(ctx, time.Duration(random.IntN(40))*time.Millisecond)
			}
		})
	}
}

// batch publishes the next numbers of a hub until they are accepted, one per padding.
func (l *losses) batch(hub string, paddings []string, through func(hub string, first int, list []string) (bool,
	error),
) error {
	first, last := int(l.begun[hub].Load())+1, int(l.begun[hub].Load())+len(paddings)
	l.begun[hub].Store(int64(last))
	var list []string
	for i, padding := range paddings {
		list = append(list, numbered(hub, first+i, padding))
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		stored, err := through(hub, first, list)
		if err != nil {
			return err
		}
		if stored {
			l.accepted[hub].Store(int64(last))
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("%d was not accepted within %s", first, patience)
}

// numbered returns a notification with a number of its hub. The topic depends on the number.
func numbered(hub string, n int, padding string) string {
	topic := "job.created"
	if n%3 == 0 {
		topic = "container.updated"
	}
	return fmt.Sprintf(`{"topic":%q,"object":{"id":"%s/%d"},"context":{"hub_id":%q,"account_id":"acme"},"padding":%q}`,
		topic, hub, n, hub, padding)
}

// post returns false if the batch may or may not be in the log.
func (l *losses) post(hub string, first int, list []string) (bool, error) {
	d := &testkit.Daemon{Public: l.way.Addr()}
	r, err := d.Try(context.Background(), testkit.Request{
		Method: "POST", Key: opsKey, Hub: hub, ContentType: "application/x-ndjson", Body: strings.Join(list, "\n"),
		Header: map[string]string{"Idempotency-Key": fmt.Sprintf("%s-%d", hub, first)},
	})
	switch {
	case err != nil || r.Status == 503:
		return false, nil
	case r.Status == 202:
		return true, nil
	default:
		return false, fmt.Errorf("answered %d %s", r.Status, r.Body)
	}
}

// add publishes with Redis only.
func (l *losses) add(hub string, first int, list []string) (bool, error) {
	for i, text := range list {
		args := &redis.XAddArgs{Stream: "hubrelay:inbox", Values: []string{
			"data", text, "key",
			fmt.Sprintf("%s-%d", hub, first+i),
		}}
		if err := l.redis.store.XAdd(context.Background(), args).Err(); err != nil {
			return false, nil
		}
	}
	return true, nil
}

// storm causes failures for a time and returns the count of each.
func (l *losses) storm(long time.Duration) map[string]int {
	l.t.Helper()
	done := make(map[string]int)
	for end := time.Now().Add(long); time.Now().Before(end); {
		time.Sleep(time.Duration(200+
			l.random.IntN(600)) * time.Millisecond) // random moments
		began := time.Now()
		what := l.strike()
		l.t.Logf("%s: %s, in %s", began.Format(time.TimeOnly), what, time.Since(began).Round(time.Millisecond))
		done[what]++
	}
	return done
}

// failureCount returns the number of different failures.
func (l *losses) failureCount() int { return 7 + l.redis.blows }

// nextFailure returns the next failure. A round contains each one.
func (l *losses) nextFailure() (blow int) {
	if len(l.deck) == 0 {
		l.deck = l.random.Perm(l.failureCount())
	}
	blow, l.deck = l.deck[0], l.deck[1:]
	l.dealt++
	return blow
}

// strike causes a failure and repairs it.
func (l *losses) strike() (what string) {
	l.t.Helper()
	one := 1 + l.random.IntN(2)
	moment := time.Duration(l.random.IntN(2000)) * time.Millisecond
	switch blow := l.nextFailure(); blow {
	case 0, 1:
		l.nodes[one].Load().Kill()
		l.nodes[one].Store(serve(l.t, l.text))
		return "a node killed"
	case 2:
		l.nodes[1].Load().Kill()
		l.nodes[2].Load().Kill()
		l.nodes[1].Store(serve(l.t, l.text))
		l.nodes[2].Store(serve(l.t, l.text))
		return "two nodes killed"
	case 3:
		l.nodes[one].Load().Stop(l.t)
		l.nodes[one].Store(serve(l.t, l.text))
		return "a node stopped"
	case 4:
		pid := l.nodes[one].Load().Cmd.Process.Pid
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		time.Sleep(moment)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		return "a node hung"
	case 5:
		l.way.Cut()
		return "connections cut"
	case 6:
		l.stopReaders()
		return "readers stopped"
	default:
		return l.redis.strike(blow-7, l.random, moment)
	}
}
