package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// channel stands for Slack. It keeps the messages that it took, by the last part of the path.
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

// TestSlack has one incoming webhook for each kind of answer, and looks for their addresses in all that the daemon shows.
func TestSlack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	c := &channel{messages: map[string][]string{}, asked: map[string]int{}}
	far := httptest.NewServer(c)
	t.Cleanup(far.Close)
	address := func(name string) string { return far.URL + "/services/T0000/B0000/s3cret-" + name }
	file := write(t, folder(t), "address", address("filed")+"\n")
	sinks := fmt.Sprintf("  filed: {type: slack, url_file: %q, topics: [\"container.*\"], allow_cidrs: [127.0.0.0/8]}\n", file)
	for _, name := range []string{"flaky", "picky", "left"} {
		sinks += fmt.Sprintf("  %s: {type: slack, url: %q, allow_cidrs: [127.0.0.0/8], retry: {schedule: [100ms, 200ms]}}\n", name, address(name))
	}
	d := serve(t, setup{redis: fmt.Sprintf("url: %q", server.URL()), sinks: sinks})
	ids := d.publish(t, "hub-1", "application/x-ndjson",
		`{"topic":"container.error","object":{"id":"web-1","error":"<!channel> no such image"},"context":{"account_id":"acme","containers":["c1"]}}`, nil)

	eventually(t, "the message by url_file", c.took("s3cret-filed", ids))
	eventually(t, "the message after an answer that was not ok", c.took("s3cret-flaky", ids))
	wantDead(t, store, "picky", ids, "400", 1)
	eventually(t, "the sink whose webhook is gone to be disabled", func() error {
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
	for _, err := range hasAll(text, "Something went wrong with a container", "web-1", "hub-1", "acme", "c1", "no such image", "!channel") {
		t.Error(err)
	}
	if strings.Contains(text, "<!channel>") || strings.Contains(text, `\u003c!channel`) {
		t.Errorf("an event can call the channel: %s", text)
	}
	metrics, err := http.Get("http://" + d.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	figures, _ := io.ReadAll(metrics.Body)
	_ = metrics.Body.Close()
	for what, shown := range map[string]string{
		"log": d.err.String() + d.out.String(), "metrics": string(figures), "dead letter": fmt.Sprint(deadLetters(t, store, "picky")),
	} {
		if strings.Contains(shown, "s3cret") || strings.Contains(shown, "/services/T0000") {
			t.Errorf("the %s shows an address:\n%s", what, shown)
		}
	}
}
