package frame

import (
	"strings"
	"testing"
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
