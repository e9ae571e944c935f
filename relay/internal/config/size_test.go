package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestLoad_BoundsWork(t *testing.T) {
	for name, text := range map[string]string{
		"size":     strings.Repeat("#\n", 6<<20),
		"tokens":   strings.Repeat("a: 1\n", 100_000),
		"flow":     "sinks: " + strings.Repeat("[", 100_000),
		"dashes":   "sinks:\n" + strings.Repeat("- ", 50_000),
		"mark":     "sinks: " + strings.Repeat("&a ", 5_000),
		"question": strings.Repeat("? ", 50_000),
		"text":     "\"" + strings.Repeat("\\n", 1<<18),
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			_, err := config.Load(writeConfig(t, text), nil, kinds())
			if err == nil || len(err.Error()) > 4096 {
				t.Errorf("got %v", err)
			}
			t.Log(time.Since(begin), err)
		})
	}
}

func TestSize_RoundTrips(t *testing.T) {
	for text, want := range map[string]config.Size{
		"0": 0, "1MiB": 1 << 20, "1024": 1 << 10, "3 KiB": 3 << 10, "2MB": 2e6, "7B": 7, "1GiB": 1 << 30,
	} {
		got, err := config.ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
		if again, err := config.ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%s: formatted as %s, parsed as %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5MiB", "MiB", "1XB", "99999999999GiB", "1 M"} {
		if got, err := config.ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}
