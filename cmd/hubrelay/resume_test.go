package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// curlEvents reads an event stream with curl. Its output ends with the stream or the test.
func (d *daemon) curlEvents(t *testing.T, query string, headers ...string) *testkit.Output {
	t.Helper()
	args := []string{"-sSN", "-H", "Accept: text/event-stream"}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	args = append(args, "http://"+d.Public+notificationsPath+query)
	curl := testkit.Start(t, testkit.Command{Path: "curl", Args: args, OneOutput: true})
	testkit.Eventually(t, "the stream to begin", curl.Out.Contains("retry: "))
	return curl.Out
}

var (
	eventID = regexp.MustCompile(`(?m)^id: (\S+)\ndata: `) // not that of a heartbeat
	eventOf = regexp.MustCompile(`(?m)^data: .*"object":\{"id":"([^"]*)"`)
)

func lastOf(expr *regexp.Regexp, text string) []string {
	var list []string
	for _, m := range expr.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// TestLongEventsOverAKill follows a hub with curl over the kill of its node. At the other node, the same token and
// the last id continue without gaps and repeats. Without a stream the token expires.
func TestLongEventsOverAKill(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	text := daemonConfig{redis: fmt.Sprintf("url: %q, partitions: 2", server.URL()), auth: "token_ttl: 15s"}
	nodes := []*daemon{serve(t, text), serve(t, text)}
	for _, hub := range []string{"hub-1", ""} {
		token := nodes[0].Token(t, opsKey, hub)
		first := nodes[0].curlEvents(t, "?token="+token)
		ids := nodes[1].Publish(t, "hub-1", "application/x-ndjson", lines(20), nil)
		testkit.Eventually(t, "all of it", func() error {
			if got := lastOf(eventOf, first.String()); !slices.Equal(got, ids) {
				return fmt.Errorf("hub %q: got %v", hub, got)
			}
			return nil
		})
		if hub == "" {
			nodes[0].Kill()
		}
		at := lastOf(eventID, first.String())
		ids = append(ids[10:], nodes[1].Publish(t, "hub-1", "application/x-ndjson", lines(20), nil)...)
		// From the middle, with all later events. A websocket continues from the same cursor.
		second := nodes[1].curlEvents(t, "?token="+token, "Last-Event-ID: "+at[len(at)-11])
		ws := nodes[1].connect(t, opsKey, hub, "&after="+at[len(at)-11])
		testkit.Eventually(t, "what followed", func() error {
			if got := lastOf(eventOf, second.String()); !slices.Equal(got, ids) {
				return fmt.Errorf("hub %q: got %v, want %v", hub, got, ids)
			}
			return nil
		})
		if got := objectIDs(ws.wait(t, len(ids))); !slices.Equal(got, ids) {
			t.Errorf("hub %q: the websocket got %v, want %v", hub, got, ids)
		}
	}
	held := func() int64 { return int64(len(store.Keys(t.Context(), "hubrelay:token:*").Val())) }
	testkit.Eventually(t, "the tokens of open streams", func() error {
		if held() == 0 {
			return errors.New("they are gone")
		}
		return nil
	})
	nodes[1].Kill()
	testkit.Eventually(t, "the tokens of killed nodes to be gone", func() error {
		if n := held(); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// TestEventsOverALostToken reconnects with the token of an open stream after Redis has lost it.
func TestEventsOverALostToken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), auth: "token_ttl: 15s"})
	token := d.Token(t, opsKey, "hub-1")
	d.curlEvents(t, "?token="+token)
	var names []string
	testkit.Eventually(t, "the token to be lost", func() error {
		names = store.Keys(t.Context(), "hubrelay:token:*").Val()
		if len(names) != 1 || store.Del(t.Context(), names...).Val() != 1 {
			return fmt.Errorf("the tokens in Redis: %q", names)
		}
		return nil
	})
	testkit.Eventually(t, "the token to be there again", func() error {
		if store.Exists(t.Context(), names...).Val() == 0 {
			return errors.New("it is lost")
		}
		return nil
	})
	d.curlEvents(t, "?token="+token)
}

// TestEvents_OneStreamPerToken opens event streams with copies of a token at two nodes. Only the last one stays, until
// the token is revoked.
func TestEvents_OneStreamPerToken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}
	nodes := []*daemon{serve(t, c), serve(t, c)}
	token := nodes[0].Token(t, opsKey, "hub-1")
	hasEnded := func(out *testkit.Output, reason string) {
		t.Helper()
		want := `event: close` + "\n" + `data: {"code":1008,"reason":"` + reason + `"}` + "\n\n"
		testkit.Eventually(t, "the end of a stream", func() error {
			if !strings.HasSuffix(out.String(), want) {
				return errors.New(out.String())
			}
			return nil
		})
	}
	var last *testkit.Output
	for i := range 5 {
		next := nodes[i%2].curlEvents(t, "?token="+token)
		if last != nil {
			hasEnded(last, "another stream was opened with this token")
		}
		last = next
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete,
		"http://"+nodes[1].Public+notificationsPath+"/token", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Service-Token", token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		t.Errorf("got status %d for the revocation, want %d", res.StatusCode, http.StatusNoContent)
	}
	hasEnded(last, "the token was revoked or used for a websocket")
}

// TestEventsAtAStop checks that a stream ends with an event that contains the reason, over HTTP/2 too.
func TestEventsAtAStop(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	key := []string{"Authorization: Bearer " + opsKey, "X-Hub-Id: hub-1"}
	stream := d.curlEvents(t, "", key...)
	args := []string{"-sSN", "--http2-prior-knowledge", "-H", "Accept: text/event-stream", "-H", key[0], "http://" +
		d.Public + notificationsPath}
	curl := testkit.Start(t, testkit.Command{Path: "curl", Args: args, OneOutput: true})
	second := curl.Out
	testkit.Eventually(t, "the stream over HTTP/2 to begin", second.Contains("retry: "))
	d.Publish(t, "hub-1", "application/json", `{"topic":"job.created"}`, nil)
	for _, out := range []*testkit.Output{stream, second} {
		testkit.Eventually(t, "the event", out.Contains(`data: {"topic":"job.created"`))
	}
	d.Stop(t)
	if status := curl.Exit(t); status != 0 {
		t.Errorf("curl over HTTP/2 ended with %d", status)
	}
	for _, out := range []*testkit.Output{stream, second} {
		testkit.Eventually(t, "the last event", func() error {
			if !strings.HasSuffix(out.String(), "event: close\ndata: {\"code\":1012,\"reason\":\"the relay is "+
				"restarting; connect again\"}\n\n") {
				return errors.New(out.String())
			}
			return nil
		})
	}
}
