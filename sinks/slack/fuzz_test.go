package slack

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/relay"
)

// Slack's limits hold for whatever producers send.
func FuzzMessage(f *testing.F) {
	f.Add("container.error", "id", "running", "starting", hostile, "hub", "c1", uint16(1))
	f.Add("acme.<b>", "&&&", "🇩🇪🇫🇷", "\u202e", strings.Repeat("👩\u200d👧", 900),
		strings.Repeat("<", 700),
		strings.Repeat("`", 3000), uint16(60))
	f.Add("", "", "", "", "\xff\xfe", "\u0301", "\n\n", uint16(300))
	f.Fuzz(func(t *testing.T, topic, id, state, before, problem, hub, container string, n uint16) {
		data, err := json.Marshal(map[string]any{
			"topic":  topic,
			"object": map[string]string{"id": id, "state": state, "error": problem, "previous_state": before},
			"context": map[string]any{
				"hub_id": hub, "account_id": hub, "environments": []string{container, hub}, "clusters": []string{topic},
				"dns_zones":  make([]string, n%40),
				"containers": strings.Split(strings.Repeat(container+"\x01", int(n%40)), "\x01"),
			},
		})
		if err != nil {
			t.Skip()
		}
		d := relay.Delivery{ID: id}
		for range 1 + n%60 {
			d.Notifications = append(d.Notifications, relay.Notification{
				ID: id, Topic: topic, Hub: hub, Cursor: state, Data: data,
			})
		}
		checkMessage(t, newRenderer().renderDelivery(d))
		d.Digest = &relay.Digest{
			Count: int(n) * 100, Shared: map[string]string{"topic": state, "hub": hub, "cluster": topic},
			Topics: map[string]int{
				topic: int(n), id: int(n) - 30, problem: 1, before: 7, container: 3,
				"container.error": len(hub), hub: 2,
			},
		}
		if n%2 == 0 {
			d.Digest.Shared = nil
		}
		checkMessage(t, newRenderer().renderDelivery(d))
		d.Digest = nil
		d.Notifications = []relay.Notification{{ID: id, Topic: topic, Hub: hub, Data: []byte(problem)}}
		checkMessage(t, newRenderer().renderDelivery(d))
	})
}

func FuzzFit(f *testing.F) {
	f.Add("a&b<c>é👩\u200d👩\u200d👧", 5)
	f.Add(strings.Repeat("\u0301", 100), 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = 1 + int(uint(limit)%4000)
		got := escapeAndTruncate(s, limit)
		if utf16Len(got) > limit {
			t.Errorf("%d units, %d allowed", utf16Len(got), limit)
		}
		if utf8.ValidString(s) {
			checkText(t, got)
		}
		if utf16Len(escapeMarkup(s)) <= limit && got != escapeMarkup(s) {
			t.Errorf("%q was cut although it fits", s)
		}
	})
}
