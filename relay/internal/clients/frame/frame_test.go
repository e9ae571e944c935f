package frame

import (
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestCloseFrameIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"", "short", strings.Repeat("é", 100), strings.Repeat("x", 124)} {
		frame := NewClose(1013, reason)
		if len(frame) != int(frame[1])+2 || frame[1] > maxControlPayload {
			t.Errorf("%q: length %d, says %d", reason, len(frame), frame[1])
		}
		if text := string(frame[4:]); !strings.HasPrefix(reason, text) || text != strings.ToValidUTF8(text, "?") {
			t.Errorf("%q became %q", reason, text)
		}
	}
}

func TestNew_AddsMembers(t *testing.T) {
	t.Parallel()
	event := relay.Notification{ID: "6b050022000000df2e27fe14", Data: []byte(`{"topic":"x"}`)}
	const metadata = `,"id":"6b050022000000df2e27fe14","time":"2026-11-24T03:10:26Z"`
	for _, tt := range []struct {
		name string
		n    relay.Notification
		as   Encoding
		want string
	}{
		{"nothing", event, 0, "\x81\x0d" + `{"topic":"x"}`},
		{"cursor", event, WithCursor, "\x81\x1a" + `{"topic":"x","cursor":"c"}`},
		{"metadata", event, WithMetadata, "\x81\x4b" + `{"topic":"x"` + metadata + `}`},
		{"both", event, WithMetadata | WithCursor, "\x81\x58" + `{"topic":"x"` + metadata + `,"cursor":"c"}`},
		{"event", event, SSE | WithMetadata, "id: c\ndata: " + `{"topic":"x"` + metadata + "}\n\n"},
		{"without an ID", relay.Notification{Data: event.Data}, WithMetadata, "\x81\x0d" + `{"topic":"x"}`},
	} {
		if got := string(New(&tt.n, tt.as, []byte("c"))); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
