package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestSourcesInACircle has two relays that read each other. A notification exists once in both. A relay that reads
// itself is rejected.
func TestSourcesInACircle(t *testing.T) {
	t.Parallel()
	text := daemonConfig{redis: `url: "memory:"`}
	one := serve(t, text)
	dir := tempDir(t)
	other := text
	other.keys = upstreamSource("http://"+one.Public, "")
	two := serveFile(t, writeFile(t, dir, "two.yaml", other.renderYAML()))
	// The first relay gets the second and itself as sources while it runs.
	file := one.Cmd.Args[len(one.Cmd.Args)-1]
	back := text
	back.keys = fmt.Sprintf("sources: {upstream: {type: hub, url: %q, key: %s}, self: {type: hub, url: %q, key: %s}}\n",
		"http://"+two.Public, opsKey, "http://"+one.Public, opsKey)
	one.reconfigure(t, file, back, 1)
	testkit.Eventually(t, "both directions", func() error {
		a, b := one.sources(t), two.sources(t)
		if len(a) != 2 || len(b) != 1 || a[1].State != "connected" || b[0].State != "connected" {
			return fmt.Errorf("%+v, %+v", a, b)
		}
		if a[0].State != "rejected" || !strings.Contains(a[0].Reason, "this relay itself") {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	first, second := one.connect(t, opsKey, "hub-1", ""), two.connect(t, opsKey, "hub-1", "")
	for n := range 10 {
		from := []*daemon{one, two}[n%2]
		from.Publish(t, "hub-1", "application/json", numberedNote("hub-1", n+1), nil)
	}
	testkit.Eventually(t, "the loop to be counted", func() error {
		if a, b := one.sources(t)[1], two.sources(t)[0]; a.Returned != 5 || b.Returned != 5 || a.Stored != 5 ||
			b.Stored != 5 {
			return fmt.Errorf("%+v, %+v", a, b)
		}
		return nil
	})
	for _, s := range []*socket{first, second} {
		if frames := s.wait(t, 10); len(frames) != 10 {
			t.Errorf("%d came", len(frames))
		}
	}
}

// TestSourceGapReachesClients has an upstream that has lost its log. Clients receive the gap at its position in the
// log of the relay, even if they connect later. Sinks receive it if they subscribe to it.
func TestSourceGapReachesClients(t *testing.T) {
	t.Parallel()
	var up atomic.Pointer[daemon]
	up.Store(serve(t, daemonConfig{redis: `url: "memory:"`}))
	way := testkit.StartProxy(t, func() string { return up.Load().Public })
	hooks := receive(t, nil)
	down := serve(t, daemonConfig{
		redis: `url: "memory:", partitions: 2`,
		sinks: webhookSink("hook", hooks.url+"/", `, topics: ["*", "hubrelay.*"]`),
		keys:  upstreamSource("http://"+way.Addr(), ""),
	})
	testkit.Eventually(t, "the source", down.connectedSource(t))
	client := down.connect(t, opsKey, "hub-1", "&topics=image.*&cursor=true&after=now")
	before := cursorOf(t, client.wait(t, 1)[0])
	up.Load().Publish(t, "hub-1", "application/json", numberedNote("hub-1", 1), nil)
	testkit.Eventually(t, "the first", func() error {
		if n := len(hooks.counts()); n != 1 {
			return fmt.Errorf("%d came", n)
		}
		return nil
	})

	up.Load().Kill()
	up.Store(serve(t, daemonConfig{redis: `url: "memory:"`}))
	way.Cut()
	isResync := func(frame string) {
		t.Helper()
		if !strings.Contains(frame, `"topic":"hubrelay.resync"`) ||
			!strings.Contains(frame, "events from another relay may be missing") ||
			strings.Contains(frame, "127.0.0.1") {
			t.Errorf("got %s", frame)
		}
	}
	isResync(client.wait(t, 2)[1])
	isResync(down.connect(t, opsKey, "hub-1", "&topics=image.*&after="+before).wait(t, 1)[0])
	testkit.Eventually(t, "the source again", down.connectedSource(t))
	up.Load().Publish(t, "hub-1", "application/json", numberedNote("hub-1", 2), nil)
	testkit.Eventually(t, "the second one, after events for clients only", func() error {
		if n := len(hooks.counts()); n != 3 {
			return fmt.Errorf("%d came", n)
		}
		return nil
	})
	for _, h := range hooks.of("/") {
		if strings.Contains(h.body, "hubrelay.resync") {
			t.Errorf("a sink got %s", h.body)
		}
	}
	if s := down.sources(t)[0]; s.Stored != 2 || s.Gaps != 1 {
		t.Errorf("%+v", s)
	}
}

func cursorOf(t *testing.T, frame string) string {
	t.Helper()
	var m struct{ Cursor string }
	if err := json.Unmarshal([]byte(frame), &m); err != nil || m.Cursor == "" {
		t.Fatalf("%v: %s", err, frame)
	}
	return m.Cursor
}
