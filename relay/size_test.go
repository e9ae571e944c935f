package relay

import (
	"strings"
	"testing"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"": 0, "1000": 1000, "64KiB": 64 << 10, "256MiB": 256 << 20, "2 GiB": 2 << 30,
	} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: got %d, %v", text, s, err)
		}
		formatted, err := s.MarshalText()
		if err != nil || string(formatted) != strings.ReplaceAll(text, " ", "") {
			t.Errorf("%q: got %q, %v", text, formatted, err)
		}
	}
	for _, text := range []string{"-1", "x", "1MB", "99999999999GiB", "1.5GiB"} {
		if err := new(Size).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
}
