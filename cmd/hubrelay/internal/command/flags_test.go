package command_test

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
)

func TestParseTimeFlag(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2h": "2026-11-21T02:00:00Z", "90m": "2026-11-21T02:30:00Z",
		"2026-11-20T08:00:00+01:00": "2026-11-20T07:00:00Z",
		"-2h":                       "", "yesterday": "", "2026-11-20": "",
	} {
		got, err := command.ParseTimeFlag("since", text, now)
		if (err == nil) != (want != "") || err == nil && got.UTC().Format(time.RFC3339) != want {
			t.Errorf("ParseTimeFlag(%q) = %s, %v, want %q", text, got, err, want)
		}
	}
}
