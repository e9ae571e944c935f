package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// api is a double of two of Slack's methods, made from Slack's reference of them. It keeps messages by their ts.
type api struct {
	mu       sync.Mutex
	messages []map[string]any
	updates  int
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m map[string]any
	a.mu.Lock()
	defer a.mu.Unlock()
	if json.Unmarshal(body, &m) != nil || r.Header.Get("Authorization") != "Bearer xoxb-s3cret-token" {
		_, _ = io.WriteString(w, `{"ok":false,"error":"invalid_auth"}`)
		return
	}
	ts := m["ts"]
	if strings.HasSuffix(r.URL.Path, "/chat.update") {
		for _, one := range a.messages {
			if one["ts"] == ts {
				one["text"] = m["text"]
				a.updates++
			}
		}
	} else {
		ts = fmt.Sprintf("1795235000.%06d", len(a.messages))
		m["ts"] = ts
		a.messages = append(a.messages, m)
	}
	_, _ = fmt.Fprintf(w, `{"ok":true,"channel":"C0GENERAL","ts":%q}`, ts)
}

// threads counts the first messages and the replies that name one of them.
func (a *api) threads() (first, replies int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.messages {
		switch m["thread_ts"] {
		case nil:
			first++
		case a.messages[0]["ts"]:
			replies++
		}
	}
	return first, replies
}

// TestSlackThreads has two nodes on one Redis that both deliver for one container, then a third that has just started. There is
// one thread all along.
func TestSlackThreads(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	slack := &api{}
	far := httptest.NewServer(slack)
	t.Cleanup(far.Close)
	s := setup{redis: fmt.Sprintf("url: %q", server.URL()), sinks: fmt.Sprintf(
		"  team: {type: slack, token: xoxb-s3cret-token, api_url: %q, channel: C0GENERAL, topics: [\"container.*\"], allow_cidrs: [127.0.0.0/8], rate: 1000/s, burst: 100, retry: {schedule: [200ms, 500ms, 1s, 5s]}}\n", far.URL+"/api")}
	nodes := []*daemon{serve(t, s), serve(t, s)}
	const each = 6
	line := func(n int) string {
		return fmt.Sprintf(`{"topic":"container.error","object":{"id":"web-1","error":"round %d"},"context":{"account_id":"acme","containers":["c1"]}}`, n)
	}
	wait := func(want int) {
		t.Helper()
		eventually(t, "all replies in one thread", func() error {
			if first, replies := slack.threads(); first != 1 || replies != want-1 {
				return fmt.Errorf("%d threads and %d replies, want %d messages in one", first, replies, want)
			}
			return nil
		})
	}
	for n := range each {
		nodes[n%2].publish(t, "hub-1", "application/json", line(n), nil)
	}
	wait(each)
	third := serve(t, s)
	third.publish(t, "hub-1", "application/json", line(each), nil)
	wait(each + 1)
	slack.mu.Lock()
	if text := fmt.Sprint(slack.messages[0]["text"]); slack.updates == 0 || !strings.Contains(text, fmt.Sprint("round ", each)) {
		t.Errorf("after %d updates the first message shows %s", slack.updates, text)
	}
	slack.mu.Unlock()
	keys, err := redisAt(t, server.Socket).Keys(t.Context(), "hubrelay:memory:team:*").Result()
	if err != nil || len(keys) != 1 {
		t.Errorf("remembered: %s, %v", keys, err)
	}
	for _, d := range append(nodes, third) {
		if shown := d.err.String() + d.out.String(); strings.Contains(shown, "s3cret") {
			t.Errorf("the log shows the token:\n%s", shown)
		}
	}
}
