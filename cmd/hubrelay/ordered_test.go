package main_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestLongOrderOverNodes checks the order of each hub over failures, a kill of the leader, and a replay of the log.
func TestLongOrderOverNodes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		hash := fnv.New32a()
		_, _ = fmt.Fprintf(hash, "%s/%d", h.id, h.attempt)
		if hash.Sum32()%20 == 0 && h.attempt < 5 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	text := daemonConfig{
		redis: fmt.Sprintf("url: %q", server.URL()),
		sinks: webhookSink("hook", hooks.url+"/", ", ordering: hub, timeout: 10s"),
	}
	nodes := []*daemon{serve(t, text), serve(t, text)}
	ids := make(map[string][]string)
	var all []string
	publish := func(through ...*daemon) {
		t.Helper()
		for i := range 100 {
			hub := fmt.Sprint("hub-", i%4)
			batch := through[i%len(through)].Publish(t, hub, "application/x-ndjson", lines(5), nil)
			ids[hub], all = append(ids[hub], batch...), append(all, batch...)
		}
	}
	leader := -1
	testkit.Eventually(t, "a node to lead", func() error {
		leader = slices.IndexFunc(nodes,
			func(d *daemon) bool { return d.Err.Contains("node became the leader of an ordered sink")() == nil })
		if leader < 0 {
			return errors.New("none does")
		}
		return nil
	})
	publish(nodes...)
	testkit.Eventually(t, "a part of the webhooks", func() error {
		if n := len(hooks.of("/")); n < len(all)/3 {
			return fmt.Errorf("%d requests came", n)
		}
		return nil
	})
	nodes[leader].Kill()
	other := nodes[1-leader]
	publish(other)
	testkit.Eventually(t, "every webhook", delivered(hooks, all, 1))
	const inFlight = 16
	inOrder(t, hooks, ids, 0, inFlight)
	store := redisAt(t, server.Socket)
	testkit.Eventually(t, "the queue to be empty", func() error { return expectQueueLength(t, store, 0) })

	before := len(hooks.of("/"))
	if out, errOut, code := call(t, nil, "", "sinks", "replay", "hook", "--after", "0-0", "--admin",
		other.Admin); code != 0 {
		t.Fatalf("the replay ended with %d:\n%s%s", code, out, errOut)
	}
	testkit.Eventually(t, "everything once more", func() error {
		if err := delivered(hooks, all, 2)(); err != nil {
			return err
		}
		if n, err := store.ZCard(t.Context(), "hubrelay:retry:hook").Result(); err != nil || n != 0 {
			return fmt.Errorf("%d are parked, %w", n, err)
		}
		return nil
	})
	inOrder(t, hooks, ids, before, 0)
}

// delivered returns a probe: each id was accepted at least the given number of times.
func delivered(r *receiver, ids []string, times int) func() error {
	return func() error {
		accepted := make(map[string]int)
		for _, h := range r.of("/") {
			if h.status == http.StatusNoContent {
				accepted[h.id]++
			}
		}
		for i, id := range ids {
			if accepted[id] < times {
				return fmt.Errorf("number %d of %d was accepted %d times, want %d", i, len(ids), accepted[id], times)
			}
		}
		return nil
	}
}

// inOrder checks that accepted requests contain the notifications of each hub in order, and limits repeats.
func inOrder(t *testing.T, r *receiver, ids map[string][]string, first, again int) {
	t.Helper()
	twice := 0
	seen := make(map[string]bool)
	var accepted []string
	for _, h := range r.of("/")[first:] {
		switch {
		case h.status != http.StatusNoContent:
		case seen[h.id]:
			twice++
		default:
			seen[h.id] = true
			accepted = append(accepted, h.id)
		}
	}
	if twice > again {
		t.Errorf("%d came twice, want at most %d", twice, again)
	}
	for hub, want := range ids {
		got := slices.DeleteFunc(slices.Clone(accepted), func(id string) bool { return !slices.Contains(want, id) })
		if !slices.Equal(got, want) {
			t.Errorf("%s got %d events that are not its %d in order", hub, len(got), len(want))
		}
	}
}
