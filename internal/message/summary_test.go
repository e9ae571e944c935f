package message

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestBuild(t *testing.T) {
	t.Parallel()
	failed := relay.Notification{ID: "6740a1b20000000000000001", Topic: "container.error", Hub: "hub-1", Data: []byte(
		`{"topic":"container.error","object":{"id":"o","state":"failed","error":"out\nof \u202ememory"},` +
			`"context":{"hub_id":"hub-1","containers":["c-1"]}}`)}
	w := NewBuilder()
	p := w.Build(relay.Delivery{ID: failed.ID, Notifications: []relay.Notification{failed}})
	if want := "[PROBLEM] Something went wrong with a container as a whole: failed (hub hub-1)"; p.Subject != want {
		t.Errorf("got subject %q, want %q", p.Subject, want)
	}
	var b strings.Builder
	if err := p.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Error: out of memory\n", "Containers: c-1\n", "Delivery: " + failed.ID + "\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got text %s, want it to contain %q", b.String(), want)
		}
	}
	d := relay.Delivery{ID: "d", Digest: &relay.Digest{
		Count: 200, Shared: map[string]string{"hub": "hub-1"}, Topics: map[string]int{"container.error": 200},
	}}
	for i := range 60 {
		n := failed
		n.ID = fmt.Sprint(i)
		d.Notifications = append(d.Notifications, n)
	}
	p = w.Build(d)
	if p.Subject != "[PROBLEM] 200 events, hub hub-1" || len(p.Items) != MaxListed || p.Omitted != 150 {
		t.Errorf("digest: got %q, %d items and %d omitted", p.Subject, len(p.Items), p.Omitted)
	}
}

func TestStripInvisible(t *testing.T) {
	t.Parallel()
	const text = "a\r\nb\rc\td\u00a0e\u2028f \u202e\x00\x1b[31m\xff\ufffd g\u200b"
	if got, want := StripInvisible(text), "a\nb\nc\td e f [31m g"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := SingleLine(text), "a b c d e f [31m g"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
