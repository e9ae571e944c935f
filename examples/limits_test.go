package examples

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/client"
)

// turnedAway is the result of a rejected client; times are in milliseconds.
type turnedAway struct {
	Status            int
	Code, Message     string
	RetryAfter, Pause float64
}

// TestLongLimits rejects one client too many. It waits for the time that the daemon requests. If its websocket shows
// the status, the rejection is counted once.
func TestLongLimits(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "max_connections: 2", "max_per_hub: 1")
	for _, limit := range []struct {
		name string
		want turnedAway
	}{
		{"hub", turnedAway{Status: 429, Code: "429.rate-limiting"}},
		{"node", turnedAway{Status: 503, Code: "503.not-ready"}},
	} {
		hub := "hub-" + rand.Text()
		d.occupy(t, hub)
		t.Run(limit.name+" go", func(t *testing.T) {
			limit.want.check(t, d, limit.name, 1, func() turnedAway { return goIsTurnedAway(t, d, hub) })
		})
		t.Run(limit.name+" python", func(t *testing.T) {
			p := start(t, d.env(hub), pythonWith(t, "websockets"), "listen-python/listen.py")
			line := p.Line(t, "how long it pauses",
				func(l string) bool { return strings.HasPrefix(l, "trying again in") })
			var pause float64
			if _, err := fmt.Sscanf(line, "trying again in %f s", &pause); err != nil || pause < 2 || pause > 10 {
				t.Errorf("%v: %s", err, line)
			}
			p.End()
		})
		for name, run := range runtimes {
			t.Run(limit.name+" "+name, func(t *testing.T) {
				told, err := json.Marshal(setting{URL: d.url, Key: d.Key, Hub: hub})
				if err != nil {
					t.Fatal(err)
				}
				times := 2.0
				if name == "node with ws" {
					times = 1
				}
				limit.want.check(t, d, limit.name, times, func() (got turnedAway) {
					if out := run(t, d, "limits.mjs", told); json.Unmarshal(out, &got) != nil {
						t.Fatalf("%s", out)
					}
					return got
				})
			})
		}
	}
}

func (a *turnedAway) check(t *testing.T, d *daemon, limit string, times float64, ask func() turnedAway) {
	t.Helper()
	figure := fmt.Sprintf("hubrelay_stream_clients_rejected_total{limit=%q}", limit)
	before := d.figure(t, figure)
	got := ask()
	if got.Status != a.Status || got.Code != a.Code || got.Message == "" {
		t.Errorf("got %+v, want %+v", got, *a)
	}
	if got.RetryAfter < 2000 || got.RetryAfter > 10_000 || got.Pause != got.RetryAfter {
		t.Errorf("the pause: %+v", got)
	}
	if more := d.figure(t, figure) - before; more != times {
		t.Errorf("counted %g times, want %g", more, times)
	}
}

func (d *daemon) client(hub string) *client.Client {
	return &client.Client{URL: d.url, Key: d.Key, Hub: hub}
}

// occupy listens to the hub until the test ends.
func (d *daemon) occupy(t *testing.T, hub string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	connected, ended := make(chan struct{}), make(chan struct{})
	onConnected := sync.OnceFunc(func() { close(connected) })
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		for n, err := range d.client(hub).Listen(ctx, client.ListenOptions{OnConnected: onConnected}) {
			t.Errorf("the first client got %v, %v", n, err)
		}
	}()
	select {
	case <-connected:
	case <-time.After(patience):
		t.Fatal("the first client did not connect")
	}
}

func goIsTurnedAway(t *testing.T, d *daemon, hub string) (got turnedAway) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	told := func(err error, pause time.Duration) {
		var answer *client.Error
		if !errors.As(err, &answer) {
			t.Errorf("turned away with %v", err)
			answer = &client.Error{}
		}
		got = turnedAway{
			answer.Status, string(answer.Code), err.Error(), float64(answer.RetryAfter.Milliseconds()),
			float64(pause.Milliseconds()),
		}
		cancel()
	}
	for n, err := range d.client(hub).Listen(ctx, client.ListenOptions{
		MinBackoff: 1, MaxBackoff: 1,
		OnDisconnected: told,
	}) {
		t.Errorf("got %v, %v", n, err)
	}
	return got
}
