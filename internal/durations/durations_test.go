package durations

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"1d": day, "2w": 2 * week, "1d12h": 36 * time.Hour, "1w2d3h4m": week + 2*day + 3*time.Hour + 4*time.Minute,
		"-1d": -day, "0": 0, "1h30m": 90 * time.Minute, "-5s": -5 * time.Second, "0d": 0, "106751d": 106751 * day,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "d", "1", "1.5d", "1d2w", "1dd", "1d-2h", "1d+2h", "1 d", "106752d", "15251w", "99999999999999999999d",
		"106751d24h", "1dx", "1D",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", text, got)
		}
	}
}
