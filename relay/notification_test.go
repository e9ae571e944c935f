package relay_test

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func TestNotification_StoredAt(t *testing.T) {
	for _, c := range []struct{ name, id, cursor, want string }{
		{"id", "65f0c2a00000000000000001", "1763700000123-4", "2024-03-12T21:01:20Z"},
		{"cursor", "mine", "1763700000123-4", "2025-11-21T04:40:00.123Z"},
		{"id without time", "ffffffffffffffffffffffff", "1763700000123-4", "2025-11-21T04:40:00.123Z"},
		{"neither", "", "", "0001-01-01T00:00:00Z"},
		{"cursor without time", "", "5-1", "0001-01-01T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := relay.Notification{ID: c.id, Cursor: c.cursor}.StoredAt().Format(time.RFC3339Nano)
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
