package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// channel is a fake of Slack. It stores accepted messages by the last part of the path.
type channel struct {
	mu       sync.Mutex
	messages map[string][]string
	asked    map[string]int
}

func (c *channel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[name]++
	var m struct{ Text string }
	switch err := json.Unmarshal(body, &m); {
	case err != nil || m.Text == "" || name == "s3cret-picky":
		http.Error(w, "invalid_payload", http.StatusBadRequest)
	case name == "s3cret-left":
		http.Error(w, "no_service", http.StatusNotFound)
	case name == "s3cret-flaky" && c.asked[name] == 1:
		_, _ = io.WriteString(w, "<html>please log in to "+r.URL.Path+"</html>")
	default:
		c.messages[name] = append(c.messages[name], string(body))
		_, _ = io.WriteString(w, "ok")
	}
}

func (c *channel) took(name string, ids []string) func() error {
	return func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		return missing(ids, func(id string) bool {
			return slices.ContainsFunc(c.messages[name], func(m string) bool { return strings.Contains(m, id) })
		})
	}
}

// TestSlack has an incoming webhook for each kind of response, and checks that no output of the daemon contains their
// addresses.
func TestSlack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	c := &channel{messages: map[string][]string{}, asked: map[string]int{}}
	far := httptest.NewServer(c)
	t.Cleanup(far.Close)
	address := func(name string) string { return far.URL + "/services/T0000/B0000/s3cret-" + name }
	file := writeFile(t, tempDir(t), "address", address("filed")+"\n")
	sinks := fmt.Sprintf("  filed: {type: slack, url_file: %q, ", file) +
		"topics: [\"container.*\"], allow_cidrs: [127.0.0.0/8]}\n"
	for _, name := range []string{"flaky", "picky", "left"} {
		sinks += fmt.Sprintf("  %s: {type: slack, url: %q, allow_cidrs: [127.0.0.0/8], retry: {schedule: [100ms, "+
			"200ms]}}\n", name, address(name))
	}
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks})
	ids := d.Publish(t, "hub-1", "application/x-ndjson",
		`{"topic":"container.error","object":{"id":"web-1","error":"<!channel> no such image"},`+
			`"context":{"account_id":"acme","containers":["c1"]}}`, nil)

	testkit.Eventually(t, "the message by url_file", c.took("s3cret-filed", ids))
	testkit.Eventually(t, "the message after an answer that was not ok", c.took("s3cret-flaky", ids))
	wantDead(t, store, "picky", ids, "400", 1)
	testkit.Eventually(t, "the sink whose webhook is gone to be disabled", func() error {
		state, err := store.HGetAll(t.Context(), "hubrelay:sink:left").Result()
		if err == nil && state["state"] != "disabled" {
			err = fmt.Errorf("its state is %v", state)
		}
		shown := fmt.Sprint(state)
		if strings.Contains(shown, "s3cret") {
			t.Errorf("its state shows the address: %s", shown)
		}
		return err
	})
	c.mu.Lock()
	text := c.messages["s3cret-filed"][0]
	c.mu.Unlock()
	for _, err := range hasAll(text, "Something went wrong with a container", "web-1", "hub-1", "acme", "c1",
		"no such image", "!channel") {
		t.Error(err)
	}
	if strings.Contains(text, "<!channel>") || strings.Contains(text, `\u003c!channel`) {
		t.Errorf("an event can call the channel: %s", text)
	}
	for what, shown := range map[string]string{
		"log": d.Err.String() + d.Out.String(), "metrics": d.Metrics(t), "dead letter": fmt.Sprint(
			deadLetters(t, store, "picky")),
	} {
		if strings.Contains(shown, "s3cret") || strings.Contains(shown, "/services/T0000") {
			t.Errorf("the %s shows an address:\n%s", what, shown)
		}
	}
}

// TestDigests publishes a burst. A webhook with a digest receives it as one. A channel receives what its rate allows,
// and the rest as one digest.
func TestDigests(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := &channel{messages: map[string][]string{}, asked: map[string]int{}}
	far := httptest.NewServer(c)
	t.Cleanup(far.Close)
	bodies := make(chan []byte, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- body
	}))
	t.Cleanup(hook.Close)
	sinks := fmt.Sprintf("  channel: {type: slack, url: %q, allow_cidrs: [127.0.0.0/8]}\n", far.URL+
		"/services/T0000/B0000/burst") +
		fmt.Sprintf("  hook: {type: webhook, url: %q, allow_cidrs: [127.0.0.0/8], digest: {wait: 5s, max: 5, by: "+
			"[hub]}}\n", hook.URL)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks})
	const n = 30
	line := `{"topic":"container.error","object":{"id":"web-1","error":"no such image"},` +
		`"context":{"account_id":"acme"}}` + "\n"
	ids := d.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(line, n), nil)

	var got struct {
		Digest        relay.Digest
		Notifications []json.RawMessage
	}
	if err := json.Unmarshal(<-bodies, &got); err != nil {
		t.Fatal(err)
	}
	if got.Digest.Count != n || got.Digest.Shared["hub"] != "hub-1" || got.Digest.Topics["container.error"] != n ||
		len(got.Notifications) != 5 {
		t.Errorf("%+v with %d events", got.Digest, len(got.Notifications))
	}
	told := regexp.MustCompile(`"(\d+) × `)
	testkit.Eventually(t, "all told in the channel", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		total := 0
		for _, m := range c.messages["burst"] {
			if count := told.FindStringSubmatch(m); count != nil {
				more, _ := strconv.Atoi(count[1])
				total += more
			} else {
				total++
			}
		}
		if len(c.messages["burst"]) > 5 {
			t.Fatalf("%d messages for a burst of %d", len(c.messages["burst"]), n)
		}
		if total != len(ids) {
			return fmt.Errorf("%d of %d told: %s", total, len(ids), c.messages["burst"])
		}
		return nil
	})
}
