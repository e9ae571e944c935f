package main_test

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

// curlEvents starts curl on an event stream. Its output ends with the stream or the test.
func (d *daemon) curlEvents(t *testing.T, query string, headers ...string) *output {
	t.Helper()
	args := []string{"-sSN", "-H", "Accept: text/event-stream"}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	cmd := exec.Command("curl", append(args, "http://"+d.public+notificationsPath+query)...)
	out := new(output)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testkit.Eventually(t, "the stream to begin", out.contains("retry: "))
	return out
}

var (
	eventID = regexp.MustCompile(`(?m)^id: (\S+)$`)
	eventOf = regexp.MustCompile(`(?m)^data: .*"object":\{"id":"([^"]*)"`)
)

func lastOf(expr *regexp.Regexp, text string) []string {
	var list []string
	for _, m := range expr.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// TestLongEventsOverAKill follows a hub with curl over the kill of its node: at the other node the same token and the last id
// go on without a gap or a repeat. Without a stream the token is gone when its time is over.
func TestLongEventsOverAKill(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	text := setup{redis: fmt.Sprintf("url: %q, partitions: 2", server.URL()), auth: "token_ttl: 15s"}
	nodes := []*daemon{serve(t, text), serve(t, text)}
	for _, hub := range []string{"hub-1", ""} {
		token := nodes[0].token(t, opsKey, hub)
		first := nodes[0].curlEvents(t, "?token="+token)
		ids := nodes[1].publish(t, "hub-1", "application/x-ndjson", lines(20), nil)
		testkit.Eventually(t, "all of it", func() error {
			if got := lastOf(eventOf, first.String()); !slices.Equal(got, ids) {
				return fmt.Errorf("hub %q: got %v", hub, got)
			}
			return nil
		})
		if hub == "" {
			nodes[0].kill()
		}
		at := lastOf(eventID, first.String())
		ids = append(ids[10:], nodes[1].publish(t, "hub-1", "application/x-ndjson", lines(20), nil)...)
		// From the middle, with everything that came since; and the websocket goes on from the same place.
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
	nodes[1].kill()
	testkit.Eventually(t, "the tokens of killed nodes to be gone", func() error {
		if n := held(); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// TestEventsOverALostToken comes back with the token of a stream that was open while Redis lost it.
func TestEventsOverALostToken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	d := serve(t, setup{redis: fmt.Sprintf("url: %q", server.URL()), auth: "token_ttl: 15s"})
	token := d.token(t, opsKey, "hub-1")
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

// TestEventsAtAStop ends a stream with an event that says why, over HTTP/2 too.
func TestEventsAtAStop(t *testing.T) {
	t.Parallel()
	d := serve(t, setup{redis: `url: "memory:"`})
	key := []string{"Authorization: Bearer " + opsKey, "X-Hub-Id: hub-1"}
	stream := d.curlEvents(t, "", key...)
	cmd := exec.Command("curl", "-sSN", "--http2-prior-knowledge", "-H", "Accept: text/event-stream", "-H", key[0], "http://"+d.public+notificationsPath)
	second := new(output)
	cmd.Stdout, cmd.Stderr = second, second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the stream over HTTP/2 to begin", second.contains("retry: "))
	d.publish(t, "hub-1", "application/json", `{"topic":"job.created"}`, nil)
	for _, out := range []*output{stream, second} {
		testkit.Eventually(t, "the event", out.contains(`data: {"topic":"job.created"`))
	}
	d.stop(t)
	if err := cmd.Wait(); err != nil {
		t.Errorf("curl over HTTP/2: %v", err)
	}
	for _, out := range []*output{stream, second} {
		testkit.Eventually(t, "the last event", func() error {
			if !strings.HasSuffix(out.String(), "event: close\ndata: {\"code\":1012,\"reason\":\"the relay is restarting; connect again\"}\n\n") {
				return errors.New(out.String())
			}
			return nil
		})
	}
}
