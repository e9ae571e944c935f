package main_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestReloadFromBatchesToBinaryEvents changes the format while batches are scheduled that the new format cannot
// contain. They arrive unchanged, and later notifications arrive one by one.
func TestReloadFromBatchesToBinaryEvents(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	var open atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		if !open.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	sink := func(more string) string {
		return strings.Replace(webhookSink("hook", hooks.url+"/", more), "100ms, 200ms,", strings.Repeat("1s, ", 30), 1)
	}
	s := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sink(", batch: {max: 10, wait: 50ms}")}
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", s.renderYAML())
	d := serveFile(t, file)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(10), nil)
	testkit.Eventually(t, "the batch to be parked", func() error {
		n, err := store.ZCard(t.Context(), "hubrelay:retry:hook").Result()
		if err == nil && n == 0 {
			err = fmt.Errorf("none is parked, %d were tried", len(hooks.of("/")))
		}
		return err
	})
	s.sinks = sink(", format: cloudevents-binary")
	d.reconfigure(t, filepath.Join(dir, "hubrelay.yaml"), s, 1)
	open.Store(true)
	single := d.Publish(t, "hub-1", "application/x-ndjson", lines(2), nil)
	testkit.Eventually(t, "all to arrive", func() error {
		came := ""
		for _, h := range hooks.of("/") {
			if h.status == http.StatusNoContent {
				came += h.id + " " + h.body
			}
		}
		for _, id := range append(ids, single...) {
			if !strings.Contains(came, id) {
				return fmt.Errorf("%s is not in %s", id, came)
			}
		}
		return nil
	})
	if n := len(deadLetters(t, store, "hook")); n > 0 {
		t.Errorf("there are %d dead letters", n)
	}
}
