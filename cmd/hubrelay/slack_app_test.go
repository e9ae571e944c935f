package main_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// api is a fake of two methods of the Slack API. It stores messages by their ts.
type api struct {
	mu       sync.Mutex
	messages []map[string]any
	updates  int
	token    string // xoxb-s3cret-token if empty
	// refuse is called first and returns true if it has responded. posted is called before the response to a post.
	refuse func(http.ResponseWriter, *http.Request) bool
	posted func(n int)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m map[string]any
	a.mu.Lock()
	if a.refuse != nil && a.refuse(w, r) {
		a.mu.Unlock()
		return
	}
	if json.Unmarshal(body, &m) != nil || r.Header.Get("Authorization") != "Bearer "+
		cmp.Or(a.token, "xoxb-s3cret-token") {
		a.mu.Unlock()
		_, _ = io.WriteString(w, `{"ok":false,"error":"token_revoked"}`)
		return
	}
	ts, update := a.take(m, strings.HasSuffix(r.URL.Path, "/chat.update"))
	n, posted := len(a.messages), a.posted
	a.mu.Unlock()
	if !update && posted != nil {
		posted(n)
	}
	_, _ = fmt.Fprintf(w, `{"ok":true,"channel":%q,"ts":%q}`, m["channel"], ts)
}

func (a *api) take(m map[string]any, update bool) (ts any, updated bool) {
	ts = m["ts"]
	if update {
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
	return ts, update
}

// shown returns the messages in short form: the channel of a first message, or the index of the first message of a
// reply, and the round.
func (a *api) shown() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, m := range a.messages {
		text, _ := json.Marshal(m)
		at := fmt.Sprint(m["channel"])
		if on := m["thread_ts"]; on != nil {
			at = "reply to " + strings.TrimLeft(strings.TrimPrefix(fmt.Sprint(on), "1795235000."), "0")
			if at == "reply to " {
				at += "0"
			}
		}
		out = append(out, at+": "+regexp.MustCompile(`round \d+`).FindString(string(text)))
	}
	return out
}

// threads counts first messages and the replies to them.
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

// TestSlackThreads has two nodes that deliver for one container, and a third one that starts later. There is always
// one thread.
func TestSlackThreads(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	slack := &api{}
	far := httptest.NewServer(slack)
	t.Cleanup(far.Close)
	s := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: fmt.Sprintf(
		"  team: {type: slack, token: xoxb-s3cret-token, api_url: %q, channel: C0GENERAL, topics: "+
			"[\"container.*\"], allow_cidrs: [127.0.0.0/8], rate: 1000/s, burst: 100, retry: {schedule: [200ms, "+
			"500ms, 1s, 5s]}}\n", far.URL+"/api")}
	nodes := []*daemon{serve(t, s), serve(t, s)}
	const each = 6
	line := func(n int) string {
		return fmt.Sprintf(`{"topic":"container.error","object":{"id":"web-1","error":"round %d"},`+
			`"context":{"account_id":"acme","containers":["c1"]}}`, n)
	}
	wait := func(want int) {
		t.Helper()
		testkit.Eventually(t, "all replies in one thread", func() error {
			if first, replies := slack.threads(); first != 1 || replies != want-1 {
				return fmt.Errorf("%d threads and %d replies, want %d messages in one", first, replies, want)
			}
			return nil
		})
	}
	for n := range each {
		nodes[n%2].Publish(t, "hub-1", "application/json", line(n), nil)
	}
	wait(each)
	third := serve(t, s)
	third.Publish(t, "hub-1", "application/json", line(each), nil)
	wait(each + 1)
	testkit.Eventually(t, "the first message to show the last round", func() error { // updated after the reply
		slack.mu.Lock()
		defer slack.mu.Unlock()
		if text := fmt.Sprint(slack.messages[0]["text"]); slack.updates == 0 ||
			!strings.Contains(text, fmt.Sprint("round ", each)) {
			return fmt.Errorf("after %d updates it shows %s", slack.updates, text)
		}
		return nil
	})
	keys, err := redisAt(t, server.Socket).Keys(t.Context(), "hubrelay:shared:team:*").Result()
	if err != nil || len(keys) != 1 {
		t.Errorf("remembered: %s, %v", keys, err)
	}
	for _, d := range append(nodes, third) {
		if shown := d.Err.String() + d.Out.String(); strings.Contains(shown, "s3cret") {
			t.Errorf("the log shows the token:\n%s", shown)
		}
	}
}
