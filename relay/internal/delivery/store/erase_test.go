package store

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// A digest counts events that it does not list. They may belong to other accounts, so an erasure leaves them.
func TestRecord_EraseAccountFromDigest(t *testing.T) {
	t.Parallel()
	stored := time.Now().Add(-time.Minute)
	of := func(account string) Notification {
		return Notification{ID: NewDeliveryID(stored), Topic: "a.b", Hub: "h", Account: account, Data: "secret of " + account}
	}
	for name, tt := range map[string]struct {
		list      []Notification
		count     int
		shared    map[string]string
		wantCount int
		account   string // of the notification that is left, or "none"
	}{
		"others are listed":      {[]Notification{of("acme"), of("other")}, 2, nil, 1, "other"},
		"others are counted":     {[]Notification{of("acme"), of("acme")}, 7, map[string]string{"hub": "h"}, 5, ""},
		"nothing else":           {[]Notification{of("acme"), of("acme")}, 2, nil, 0, "none"},
		"one account only":       {[]Notification{of("acme")}, 7, map[string]string{"account": "acme"}, 6, "none"},
		"nothing of the account": {[]Notification{of("other")}, 3, nil, 3, "other"},
	} {
		r := &Record{Notifications: tt.list, Digest: &relay.Digest{
			Count: tt.count, Topics: map[string]int{"a.b": tt.count}, Shared: tt.shared, Last: stored,
		}}
		before := len(r.Notifications)
		changed := r.eraseAccount("acme", time.Now())
		if want := tt.list[0].Account == "acme"; changed != want {
			t.Errorf("%s: got changed %t, want %t", name, changed, want)
		}
		if r.Digest.Count != tt.wantCount || r.Digest.Topics["a.b"] != tt.wantCount {
			t.Errorf("%s: got count %d and topics %v, want %d", name, r.Digest.Count, r.Digest.Topics, tt.wantCount)
		}
		if tt.account == "none" {
			if len(r.Notifications) != 0 {
				t.Errorf("%s: got %v, want nothing", name, r.Notifications)
			}
			continue
		}
		if len(r.Notifications) != 1 || r.Notifications[0].Account != tt.account {
			t.Fatalf("%s: got %v of %d, want one of %q", name, r.Notifications, before, tt.account)
		}
		n := r.Notifications[0].Decode()
		if e, err := n.Envelope(); tt.account == "" && (err != nil || e.Topic != "a.b" || e.Context.HubID != "h" || n.Hub != "h") {
			t.Errorf("%s: got stand-in %s, %v", name, n.Data, err)
		}
		text, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if decoded, err := DecodeRecord(text); err != nil || decoded.Digest.Count != tt.wantCount || len(decoded.Notifications) != 1 {
			t.Errorf("%s: got %+v, %v", name, decoded, err)
		}
	}
}
