package testkit

import (
	"log/slog"
	"testing"
)

// Log returns a logger whose records are printed if the test fails.
func Log(t testing.TB) *slog.Logger {
	t.Helper()
	out := new(Output)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", out.Tail(tailBytes))
		}
	})
	return slog.New(slog.NewTextHandler(out, nil))
}
