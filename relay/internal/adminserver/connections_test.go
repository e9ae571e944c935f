package adminserver

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clients"
)

// fakeConnections returns one page and records the selection.
type fakeConnections struct{ asked clients.Selection }

func (f *fakeConnections) Connections(s clients.Selection) ([]clients.ConnectionInfo, string, error) {
	f.asked = s
	if s.After == "bad" {
		return nil, "", clients.ErrBadPageToken
	}
	return []clients.ConnectionInfo{
		{
			Hub: "h", Key: "k", Address: "192.0.2.1:5", ConnectedAt: time.UnixMilli(1_795_000_000_123),
			Topics: "job.*,!job.created", Queued: 7, State: clients.ConnectionLive,
		},
		{Account: "*", Key: "k", Address: "192.0.2.1:6", SSE: true, State: clients.ConnectionClosing},
	}, "42", nil
}

func TestAPI_Connections(t *testing.T) {
	f := &fakeConnections{}
	a := newOpen(Options{Connections: f})
	w := get(a, "GET", "/api/connections?hub_id=h&key=k&after=41&limit=2", "")
	if want := (clients.Selection{Hub: "h", Key: "k", After: "41", Limit: 2}); f.asked != want {
		t.Errorf("got selection %+v", f.asked)
	}
	want := `{"data":[` +
		`{"hub_id":"h","key":"k","address":"192.0.2.1:5","type":"websocket","connected_at":"2026-11-18T11:06:40.123Z",` +
		`"topics":["job.*","!job.created"],"queued_bytes":7,"state":"live"},` +
		`{"account_id":"*","key":"k","address":"192.0.2.1:6","type":"sse","connected_at":"0001-01-01T00:00:00Z",` +
		`"topics":[],"queued_bytes":0,"state":"closing"}],"next":"42"}`
	if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != want || !json.Valid(w.Body.Bytes()) {
		t.Errorf("%d %s", w.Code, got)
	}
	for query, status := range map[string]int{"limit=0": 422, "limit=x": 422, "after=bad": 422} {
		if w := get(a, "GET", "/api/connections?"+query, ""); w.Code != status {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := get(a, "POST", "/api/connections", ""); w.Code != 405 {
		t.Errorf("POST: got %d %s", w.Code, w.Body)
	}
}
