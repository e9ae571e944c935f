package main_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestSinks_ReceiveNotices has a sink that is gone, one that rejects, and one that receives notices about sinks.
func TestSinks_ReceiveNotices(t *testing.T) {
	t.Parallel()
	var back atomic.Bool
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		switch {
		case h.path == "/rejects":
			http.Error(w, "no such hook", http.StatusBadRequest)
		case h.path == "/gone" && !back.Load():
			w.WriteHeader(http.StatusGone)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	d := serve(t, daemonConfig{
		redis: `url: "memory:"`,
		sinks: webhookSink("gone", hooks.url+"/gone", `, topics: ["container.*", "hubrelay.*"]`) +
			webhookSink("rejects", hooks.url+"/rejects", `, topics: ["container.*"]`) +
			webhookSink("watch", hooks.url+"/watch", `, topics: ["hubrelay.*"]`) +
			webhookSink("all", hooks.url+"/all", ""),
	})
	ws := d.connect(t, opsKey, "hub-1", "&topics=hubrelay.*,container.*")
	o := operator{t, []string{"HUBRELAY_ADMIN=" + d.Admin}}
	told := func(parts ...string) func() error {
		return func() error {
			for _, h := range hooks.of("/watch") {
				if h.bad == nil && slices.IndexFunc(hasAll(h.body, parts...),
					func(err error) bool { return err != nil }) < 0 {
					return nil
				}
			}
			return fmt.Errorf("nothing says %q", parts)
		}
	}
	ids := d.Publish(t, "hub-1", "application/json", plain, nil)
	testkit.Eventually(t, "word of the sink that is gone",
		told(`{"topic":"hubrelay.sink.disabled","object":{"id":"gone","state":"disabled","error":"`, "410",
			`"context":{"hub_id":"",`))
	testkit.Eventually(t, "word of a dead letter", told(`{"topic":"hubrelay.deadletter.created","object":{"id":"`+
		ids[0], `"state":"permanent"`,
		`"sink":"rejects"`, `"attempts":1,"count":1}`, `"context":{"hub_id":"hub-1"`))
	back.Store(true)
	o.run("sinks resume gone", "gone is active")
	testkit.Eventually(t, "word of its recovery",
		told(`{"topic":"hubrelay.sink.recovered","object":{"id":"gone","state":"active","error":""}`))
	testkit.Eventually(t, "the backlog", hooks.acceptedAll("/gone", ids))

	// No other sink receives notices, and none receives its own.
	last := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	testkit.Eventually(t, "what was published last", hooks.acceptedAll("/all", last))
	d.Stop(t)
	frames := ws.wait(t, 4)
	if len(frames) != 4 || strings.Contains(strings.Join(frames, ""), "hubrelay.") {
		t.Errorf("the stream got %q", frames)
	}
	if n := len(hooks.of("/all")); n != 4 {
		t.Errorf("%d requests were sent to the sink that names no topic", n)
	}
	for _, h := range append(hooks.of("/all"), hooks.of("/gone")...) {
		ofOthers := h.path == "/gone" && strings.Contains(h.body, `"sink":"rejects"`)
		if strings.Contains(h.body, "hubrelay.") && !ofOthers {
			t.Errorf("%s got %s", h.path, h.body)
		}
	}
}
