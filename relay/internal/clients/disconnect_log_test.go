package clients

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/logsample"
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

// Clients that violate the protocol again and again do not fill the log.
func TestServer_LimitsDisconnectLines(t *testing.T) {
	t.Parallel()
	var log testkit.Buffer
	n := startNode(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, nil)
	n.disconnectLog = logsample.New(1, time.Hour, nil)
	for range 3 {
		conn := n.dial(t, "hub=h")
		_, _ = io.WriteString(conn.NetConn(), "\x83\x80\x00\x00\x00\x00") // an opcode that RFC 6455 reserves
		n.wantEnding(t, ClosedProtocolError)
	}
	testkit.WaitFor(t, "one line at level info and two at level debug", func() bool {
		lines := log.String()
		return strings.Count(lines, "level=INFO msg=\"client disconnected\"") == 1 &&
			strings.Count(lines, "level=DEBUG msg=\"client disconnected\"") == 2
	})
}
