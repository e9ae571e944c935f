package main_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/client"
)

// TestReloadNarrowsAKey removes hubs from a key while its streams are open. Clients with fewer rights are
// disconnected, reconnect without a gap, and receive only permitted events. Clients of an expired key cannot
// reconnect.
func TestReloadNarrowsAKey(t *testing.T) {
	t.Parallel()
	const wide = "wide-key-0123456789abcdef"
	key := func(hubs string, more ...string) string {
		return `    - {name: wide, key: ` + wide + `, account_id: "*", hubs: [` + hubs + `]` + strings.Join(more, "") +
			`}`
	}
	text := daemonConfig{
		redis: `url: "memory:"`, keys: key(`"*"`),
		env: []string{"HUBRELAY_WEBSOCKET__PING_INTERVAL=1h"},
	}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
	d := serveFile(t, file, text.env...)
	account, stays := d.connect(t, wide, "", ""), d.connect(t, wide, "hub-1", "")
	events := d.curlEvents(t, "?token="+d.Token(t, wide, ""))
	listener := d.listen(t, wide)
	unused := d.Token(t, wide, "")
	publish := func(first, last int) {
		for i := first; i <= last; i++ {
			for _, hub := range []string{"hub-2", "hub-1"} {
				d.Publish(t, hub, "application/json", fmt.Sprintf(`{"topic":"job.created","object":{"id":"%s %d"}}`,
					hub, i), nil)
			}
		}
	}
	publish(1, 3)
	testkit.Eventually(t, "all of both hubs", listener.saw("hub-2 3", "hub-1 3"))

	text.keys = key("hub-1")
	d.reconfigure(t, file, text, 1)
	if closed := account.closed(t, 1008); closed.Text != "the key has changed; connect again" {
		t.Errorf("closed for the reason %q", closed.Text)
	}
	testkit.Eventually(t, "the event stream to end",
		events.Contains(`data: {"code":1008,"reason":"the key has changed; connect again"}`))
	publish(4, 6)
	testkit.Eventually(t, "what the key opens still", listener.saw("hub-1 6"))
	stays.wait(t, 6)
	if ws, refused := d.upgrade(t, "?token="+unused, nil); ws == nil {
		t.Errorf("a token of before is answered %d %s", refused.Status, refused.Body)
	} else {
		fresh := listenOn(ws)
		publish(7, 7)
		if got := objectIDs(fresh.wait(t, 1)); got[0] != "hub-1 7" {
			t.Errorf("a token of before shows %q", got)
		}
	}
	testkit.Eventually(t, "the last", listener.saw("hub-1 7"))
	if got, want := listener.all(), "hub-2 1, hub-1 1, hub-2 2, hub-1 2, hub-2 3, hub-1 3, hub-1 4, hub-1 5, hub-1 "+
		"6, hub-1 7"; got != want {
		t.Errorf("the client saw %s, want %s", got, want)
	}

	// A new expiry applies to open streams long before their next ping.
	text.keys = key("hub-1", ", expires: ", time.Now().Add(3*time.Second).UTC().Format(time.RFC3339))
	d.reconfigure(t, file, text, 2)
	if closed := stays.closed(t, 1008); closed.Text != "the key has expired" {
		t.Errorf("closed for the reason %q", closed.Text)
	}
	var refused *client.Error
	if err := listener.end(t); !errors.As(err, &refused) || refused.Code != relay.CodeAuthExpired {
		t.Errorf("the client of a key that has expired ended with %v", err)
	}
}

// listener is our client on the account stream of a key.
type listener struct {
	seen  socket // received frames
	ended chan error
}

// listen returns when it is connected.
func (d *daemon) listen(t *testing.T, key string) *listener {
	t.Helper()
	l := &listener{ended: make(chan error, 1)}
	began := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c := client.Client{URL: "http://" + d.Public, Key: key}
	go func() {
		var ended error
		for n, err := range c.Listen(ctx, client.ListenOptions{
			MinBackoff: time.Millisecond,
			OnStart:    func(at string) { began <- at },
		}) {
			if ended = err; err == nil {
				l.seen.mu.Lock()
				l.seen.frames = append(l.seen.frames, string(n.Data))
				l.seen.mu.Unlock()
			}
		}
		l.ended <- ended
	}()
	select {
	case <-began:
	case <-time.After(patience):
		t.Fatal("the client did not connect")
	}
	return l
}

func (l *listener) saw(ids ...string) func() error { return l.seen.receivedAll(ids) }

func (l *listener) all() string {
	frames, _ := l.seen.snapshot()
	return strings.Join(objectIDs(frames), ", ")
}

// end returns the final error of the client.
func (l *listener) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.ended:
		return err
	case <-time.After(patience):
		return errors.New("it did not end")
	}
}
