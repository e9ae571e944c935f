package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	killedDeliveries = 5000
	killedRefused    = 200 // number of notifications that get 503 first
	killedTimes      = 20
)

// flow describes the load: concurrent requests, the interval of batches, and the maximum number of notifications
// ahead of the receiver.
type flow struct {
	batch int
	every time.Duration
	ahead int
}

// flood keeps all workers of a sink busy; steady is 500 notifications per second.
var (
	flood  = flow{batch: 50, every: time.Millisecond, ahead: 1000}
	steady = flow{batch: 1, every: 2 * time.Millisecond, ahead: killedDeliveries}
)

// TestLongKilledDuringDeliveries kills the daemon 20 times during 5,000 deliveries, after random numbers of requests, and
// starts another one on the same Redis. No accepted notification is lost. Only deliveries in flight, and as many that
// were being acknowledged in Redis, may repeat: at most twice the concurrency of the sink for each kill. HUBRELAY_TEST_SEED and HUBRELAY_TEST_KILLS select other points and their number.
func TestLongKilledDuringDeliveries(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, concurrency int, f flow) {
		t.Helper()
		t.Parallel()
		k := newKilled(t, concurrency, f)
		k.run(t)
		if most := len(k.points) * 2 * concurrency; k.twice > most {
			t.Errorf("got %d of %d deliveries twice, want at most %d", k.twice, killedDeliveries, most)
		}
	}
	t.Run("steadily", func(t *testing.T) { run(t, 16, steady) })
	t.Run("a flood, one at a time", func(t *testing.T) { run(t, 1, flood) })
	t.Run("a flood, sixteen at a time", func(t *testing.T) { run(t, 16, flood) })
}

// killed is a daemon that is killed repeatedly, its load, and its webhook.
type killed struct {
	flow
	file, data string
	points     []int           // request counts at which the daemon is killed
	refused    map[string]bool // object.ids whose first request is status 503

	hooks    *receiver
	received atomic.Int64
	due      chan struct{} // a point was reached
	current  atomic.Pointer[daemon]
	accepted chan map[string]bool // notification ids after all were accepted
	twice    int                  // ids that the receiver accepted more than once
}

func newKilled(t *testing.T, concurrency int, f flow) *killed {
	t.Helper()
	seed, kills := fromEnv(t, "HUBRELAY_TEST_SEED", 1), int(fromEnv(t, "HUBRELAY_TEST_KILLS", killedTimes))
	dir := tempDir(t)
	k := &killed{
		flow: f, data: filepath.Join(dir, "data"), refused: make(map[string]bool),
		due: make(chan struct{}, kills), accepted: make(chan map[string]bool, 1),
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for _, n := range random.Perm(killedDeliveries)[:kills] {
		k.points = append(k.points, n+1)
	}
	slices.Sort(k.points)
	for _, n := range random.Perm(killedDeliveries)[:killedRefused] {
		k.refused[strconv.Itoa(n)] = true
	}
	t.Logf("HUBRELAY_TEST_SEED=%d: killed after %v requests", seed, k.points)
	k.hooks = receive(t, k.answer)
	// Another node retries a claimed delivery after the time limit of its attempt, so a short timeout makes the test
	// fast.
	sink := webhookSink("hook", k.hooks.url+"/", fmt.Sprintf(", timeout: 5s, concurrency: %d", concurrency))
	k.file = writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: fmt.Sprintf("data_dir: %q", k.data),
		sinks: sink,
	}.renderYAML())
	return k
}

func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (k *killed) answer(w http.ResponseWriter, h hook) {
	if n := int(k.received.Add(1)); slices.Contains(k.points, n) {
		k.due <- struct{}{}
	}
	if h.attempt == 1 && k.refused[objectID(h.body)] {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (k *killed) run(t *testing.T) {
	t.Helper()
	var publishing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer publishing.Wait()
	defer stop()
	publishing.Go(func() { k.publish(ctx, t) })
	for range k.points {
		d := k.start(t)
		k.awaitPoint(t, d)
		d.Kill()
	}
	last := k.start(t)
	var accepted map[string]bool
	select {
	case accepted = <-k.accepted:
	case <-time.After(patience):
		t.Fatal("not all was accepted")
	}
	testkit.Eventually(t, "all that was accepted", k.hooks.acceptedAll("/", slices.Collect(maps.Keys(accepted))))
	store := redisAt(t, filepath.Join(k.data, "redis.sock"))
	testkit.Eventually(t, "the queue to be empty", func() error { return expectQueueLength(t, store, 0) })
	testkit.Eventually(t, "nothing to be parked", func() error {
		n, err := store.ZCard(t.Context(), "hubrelay:retry:hook").Result()
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are parked", n)
		}
		return err
	})
	if dead := deadLetters(t, store, "hook"); len(dead) > 0 {
		t.Errorf("%d are dead letters, the first is %v", len(dead), dead[0])
	}
	last.Stop(t)
	k.check(t, accepted)
}

// awaitPoint waits until the next point is reached, as long as requests arrive.
func (k *killed) awaitPoint(t *testing.T, d *daemon) {
	t.Helper()
	for {
		before := k.received.Load()
		select {
		case <-k.due:
			return
		case <-d.Done():
			t.Fatalf("serve ended with %d", d.Cmd.ProcessState.ExitCode())
		case <-time.After(patience):
			if k.received.Load() == before {
				t.Fatalf("%d requests came, and no more within %s", before, patience)
			}
		}
	}
}

// start does not wait until the daemon is ready, because the test may kill it before.
func (k *killed) start(t *testing.T) *daemon {
	t.Helper()
	d := newDaemon(start(t, nil, "serve", "-c", k.file))
	k.current.Store(d)
	return d
}

// check counts the notifications that the receiver accepted more than once.
func (k *killed) check(t *testing.T, accepted map[string]bool) {
	t.Helper()
	taken, refused := map[string]int{}, 0
	for _, h := range k.hooks.of("/") {
		switch {
		case h.bad != nil:
			t.Errorf("attempt %d of %s: %v", h.attempt, h.id, h.bad)
		case !accepted[h.id]:
			t.Errorf("%s came and was never accepted", h.id)
		case h.status == http.StatusServiceUnavailable:
			refused++
		default:
			taken[h.id]++
		}
	}
	for _, n := range taken {
		if n > 1 {
			k.twice++
		}
	}
	t.Logf("of %d accepted all came, %d were refused at first, %d were taken more than once: %.2f %%",
		len(accepted), refused, k.twice, 100*float64(k.twice)/killedDeliveries)
}

// publish sends all notifications while the daemon is killed repeatedly. It stays close to the receiver, so there is
// always work at a kill. It repeats a batch with its Idempotency-Key until it is accepted.
func (k *killed) publish(ctx context.Context, t *testing.T) {
	accepted := make(map[string]bool, killedDeliveries)
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for at := 0; at < killedDeliveries; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		d := k.current.Load()
		if d == nil || d.Serving() != nil || at > int(k.received.Load())+k.ahead {
			continue
		}
		ids, err := d.publishNumbered(ctx, at, k.batch)
		if err != nil {
			t.Error(err)
			return
		}
		for _, id := range ids {
			accepted[id] = true
		}
		at += len(ids)
	}
	k.accepted <- accepted
}

// publishNumbered publishes a batch with numbers as object.id and returns the notification ids, or none if the batch
// may not have been accepted.
func (d *daemon) publishNumbered(ctx context.Context, first, many int) ([]string, error) {
	var body strings.Builder
	for n := range many {
		fmt.Fprintf(&body, `{"topic":"job.created","object":{"id":"%d"}}`+"\n", first+n)
	}
	r, err := d.Try(ctx, testkit.Request{
		Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/x-ndjson", Body: body.String(),
		Header: map[string]string{"Idempotency-Key": strconv.Itoa(first)},
	})
	if err != nil || r.Status == http.StatusServiceUnavailable {
		return nil, nil
	}
	var answer struct{ Data struct{ IDs []string } }
	if err := json.Unmarshal([]byte(r.Body), &answer); err != nil || r.Status != http.StatusAccepted ||
		len(answer.Data.IDs) != many {
		return nil, fmt.Errorf("publish was answered %d %s", r.Status, r.Body)
	}
	return answer.Data.IDs, nil
}
