package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestWebhookResponses has a receiver for each kind of response.
func TestWebhookResponses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		switch h.path {
		case "/flaky":
			if h.attempt < 3 {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
		case "/rejects":
			http.Error(w, "no such hook", http.StatusBadRequest)
			return
		case "/gone":
			w.WriteHeader(http.StatusGone)
			return
		case "/moved":
			w.Header().Set("Location", "/target")
			w.WriteHeader(http.StatusFound)
			return
		case "/never":
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	sinks := func(gone string) string {
		return webhookSink("flaky", hooks.url+"/flaky", "") + webhookSink("rejects", hooks.url+"/rejects", "") +
			webhookSink("gone", hooks.url+gone, "") + webhookSink("moved", hooks.url+"/moved", "") +
			strings.Replace(webhookSink("never", hooks.url+"/never", ""),
				"100ms, 200ms, 300ms, 500ms, 1s, 1s, 1s, 1s, 1s, 1s", "50ms, 50ms", 1) +
			webhookSink("picky", hooks.url+"/picky",
				`, topics: ["container.*", "!*.error"], hubs: [hub-1], accounts: [acme]`)
	}
	text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks("/gone")}
	d := serve(t, text)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)

	testkit.Eventually(t, "what failed twice", hooks.acceptedAll("/flaky", ids))
	for _, h := range hooks.of("/flaky") {
		if h.bad != nil || !slices.Contains(ids, h.id) || h.attempt > 3 {
			t.Errorf("attempt %d of %s: %v", h.attempt, h.id, h.bad)
		}
	}
	wantDead(t, store, "rejects", ids, "400", 1)
	wantDead(t, store, "never", ids, "503", 3)
	if dead := deadLetters(t, store, "rejects")[0]; !strings.Contains(fmt.Sprint(dead["attempts"]), "no such hook") {
		t.Errorf("the dead letter does not show the answer: %v", dead)
	}
	testkit.Eventually(t, "a second attempt after the redirect", func() error {
		return missing(ids, func(id string) bool {
			return slices.ContainsFunc(hooks.of("/moved"), func(h hook) bool { return h.id == id && h.attempt == 2 })
		})
	})
	if followed := hooks.of("/target"); len(followed) > 0 {
		t.Errorf("a redirect was followed: %v", followed)
	}
	wantDisabled(t, d, store, hooks, ids)

	picked := d.Publish(t, "hub-1", "application/x-ndjson", strings.Join([]string{
		`{"topic":"container.created","context":{"account_id":"acme"}}`,
		`{"topic":"container.error","context":{"account_id":"acme"}}`,
		`{"topic":"job.created","context":{"account_id":"acme"}}`,
		`{"topic":"container.created","context":{"account_id":"other"}}`,
		`{"topic":"container.updated","context":{"account_id":"acme"}}`,
	}, "\n"), nil)
	testkit.Eventually(t, "what the filter passes", hooks.acceptedAll("/picky", []string{picked[0], picked[4]}))
	if n := len(hooks.of("/picky")); n != 2 {
		t.Errorf("%d came through the filter", n)
	}

	// A new address enables the sink that was gone, and its backlog arrives.
	d.Stop(t)
	serve(t, daemonConfig{redis: text.redis, sinks: sinks("/back")})
	testkit.Eventually(t, "the backlog of the sink that was gone", hooks.acceptedAll("/back", append(ids, picked...)))
}

func deadLetters(t *testing.T, store *redis.Client, sink string) []map[string]any {
	t.Helper()
	entries, err := store.XRange(t.Context(), "hubrelay:deadletters:"+sink, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var dead []map[string]any
	for _, e := range entries {
		dead = append(dead, e.Values)
	}
	return dead
}

// wantDead waits for a dead letter of each id after this number of attempts.
func wantDead(t *testing.T, store *redis.Client, sink string, ids []string, reason string, attempts int) {
	t.Helper()
	testkit.Eventually(t, "the dead letters of "+sink, func() error {
		dead := deadLetters(t, store, sink)
		return missing(ids, func(id string) bool {
			return slices.ContainsFunc(dead, func(e map[string]any) bool {
				return e["id"] == id && strings.Contains(fmt.Sprint(e["reason"]), reason) &&
					strings.Count(fmt.Sprint(e["attempts"]), `"outcome"`) == attempts &&
					strings.HasPrefix(fmt.Sprint(e["data"]), `{"topic":`)
			})
		})
	})
	if n := len(deadLetters(t, store, sink)); n != len(ids) {
		t.Errorf("%s has %d dead letters, want %d", sink, n, len(ids))
	}
}

// wantDisabled waits until the sink that got 410 is disabled, and checks that it keeps its backlog and sends nothing.
func wantDisabled(t *testing.T, d *daemon, store *redis.Client, hooks *receiver, ids []string) {
	t.Helper()
	testkit.Eventually(t, "the sink to be disabled", func() error {
		state, err := store.HGetAll(t.Context(), "hubrelay:sink:gone").Result()
		if err == nil && (state["state"] != "disabled" || !strings.Contains(state["reason"], "410")) {
			err = fmt.Errorf("its state is %v", state)
		}
		return err
	})
	testkit.Eventually(t, "the metric", func() error {
		if d.Metric(t, `hubrelay_sink_state{sink="gone",state="disabled"}`) != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	if n, err := store.XLen(t.Context(), "hubrelay:queue:gone:{0}").Result(); err != nil || n != int64(len(ids)) {
		t.Errorf("its backlog is %d, %v, want %d", n, err, len(ids))
	}
	if err := d.Err.Contains("sink disabled")(); err != nil {
		t.Error(err)
	}
	if n := len(deadLetters(t, store, "gone")); n > 0 {
		t.Errorf("it has %d dead letters", n)
	}
	if hooked := hooks.of("/gone"); len(hooked) > len(ids) {
		t.Errorf("%d requests were sent to the sink that is gone, of %d", len(hooked), len(ids))
	}
}
