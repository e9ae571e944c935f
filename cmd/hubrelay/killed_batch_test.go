package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestLongKilledDuringBatches is TestLongKilledDuringDeliveries for a sink with batches. No notification is lost. All
// attempts of a batch are equal and in the order of the log. Few notifications are in two batches.
func TestLongKilledDuringBatches(t *testing.T) {
	t.Parallel()
	k := newKilledBatches(t)
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() { k.publish(t.Context(), t) })
	for range k.points {
		d := k.start(t)
		select {
		case <-k.due:
			d.Kill()
		case <-d.Done():
			t.Fatalf("serve ended with %d", d.Cmd.ProcessState.ExitCode())
		case <-time.After(patience):
			t.Fatalf("%d events came, and no more within %s", k.received.Load(), patience)
		}
	}
	last := k.start(t)
	select {
	case <-k.accepted:
	case <-time.After(patience):
		t.Fatal("not all was accepted")
	}
	testkit.Eventually(t, "all events", func() error {
		if n := len(batchesOf(t, k.hooks.of("/"))); n < killedDeliveries {
			return fmt.Errorf("got %d requests", n)
		}
		return nil
	})
	store := redisAt(t, filepath.Join(k.data, "redis.sock"))
	testkit.Eventually(t, "nothing to be queued or parked", func() error {
		n, err := store.ZCard(t.Context(), "hubrelay:retry:hook").Result()
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are parked", n)
		}
		return errors.Join(err, expectQueueLength(t, store, 0))
	})
	last.Stop(t)
	taken := batchesOf(t, k.hooks.of("/"))
	twice := 0
	for n, ids := range taken {
		if _, err := strconv.Atoi(n); err != nil || len(taken) != killedDeliveries {
			t.Errorf("%s came, of %d", n, len(taken))
		}
		if len(ids) > 1 {
			twice++
		}
	}
	t.Logf("of %d events %d were in two batches, after %d kills", len(taken), twice, len(k.points))
	// Neither before sealing nor between sealing and the ack may a notification repeat.
	if twice > 0 {
		t.Errorf("%d were in two batches", twice)
	}
}

func newKilledBatches(t *testing.T) *killed {
	t.Helper()
	k := newKilled(t, 4, flood)
	k.file = writeFile(t, filepath.Dir(k.file), "batches.yaml", daemonConfig{
		redis: fmt.Sprintf("data_dir: %q", k.data),
		sinks: webhookSink("hook", k.hooks.url+"/", ", timeout: 5s, concurrency: 4, batch: {max: 25, wait: 20ms}"),
	}.renderYAML())
	random := rand.New(rand.NewPCG(fromEnv(t, "HUBRELAY_TEST_SEED", 1), 7))
	for i := range k.points { // no two in one batch
		apart := killedDeliveries / len(k.points)
		k.points[i] = i*apart + 1 + random.IntN(max(1, apart-50))
	}
	k.hooks.answer = func(w http.ResponseWriter, h hook) {
		k.hooks.mu.Lock()
		fails := random.IntN(10) == 0
		k.hooks.mu.Unlock()
		var list []json.RawMessage
		if json.Unmarshal([]byte(h.body), &list) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if h.attempt == 1 {
			now := int(k.received.Add(int64(len(list))))
			if slices.ContainsFunc(k.points, func(at int) bool { return at > now-len(list) && at <= now }) {
				k.due <- struct{}{}
			}
		}
		if fails {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	return k
}

// batchesOf returns the batch ids of each notification, by its number.
func batchesOf(t *testing.T, hooks []hook) map[string][]string {
	t.Helper()
	taken, bodies := map[string][]string{}, map[string]string{}
	for _, h := range hooks {
		if before, ok := bodies[h.id]; ok && before != h.body {
			t.Errorf("batch %s has other bytes in another attempt", h.id)
		}
		bodies[h.id] = h.body
		var list []struct{ Object struct{ ID string } }
		if err := errors.Join(h.bad, json.Unmarshal([]byte(h.body), &list)); err != nil || len(list) == 0 ||
			len(list) > 25 {
			t.Errorf("%d events in %s: %v", len(list), h.id, err)
		}
		before := -1
		for _, n := range list {
			number, err := strconv.Atoi(n.Object.ID)
			if err != nil || number <= before {
				t.Errorf("%s after %d: %v", n.Object.ID, before, err)
			}
			before = number
			if h.status == http.StatusNoContent && !slices.Contains(taken[n.Object.ID], h.id) {
				taken[n.Object.ID] = append(taken[n.Object.ID], h.id)
			}
		}
	}
	return taken
}
