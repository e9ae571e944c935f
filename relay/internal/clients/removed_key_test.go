package clients

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// The log distinguishes a removed key from an expired one.
func TestRecheckKeys_LogsRemovedKey(t *testing.T) {
	t.Parallel()
	for want, status := range map[string]Authorization{
		"=removed ": {Refused: relay.NewError(relay.CodeAuthInvalid, "the key was removed")},
		"=expired ": {Refused: relay.NewError(relay.CodeAuthExpired, "the key has expired")},
	} {
		var log testkit.Buffer
		var key ruling
		options := &slog.HandlerOptions{Level: slog.LevelDebug}
		n := startNode(t, Options{PingInterval: time.Hour, Log: slog.New(slog.NewTextHandler(&log, options))},
			func(s *Subscription) { s.CheckKey = key.stands })
		n.dial(t, "hub=h")
		key.Store(&status)
		n.RecheckKeys()
		testkit.WaitFor(t, "the log message of the closed stream", func() bool {
			return strings.Contains(log.String(), want)
		})
	}
}
