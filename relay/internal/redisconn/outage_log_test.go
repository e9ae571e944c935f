package redisconn_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// redisError is an error reply of Redis.
type redisError string

func (e redisError) Error() string { return string(e) }

func (redisError) RedisError() {}

// An outage of 25 seconds with four failures a second makes four records. Other records pass.
func TestOutageHandler_SummarizesOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(redisconn.NewOutageHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})))
		unavailable := redisconn.WrapError("read the log", io.EOF)
		full := redisconn.WrapError("store a retry", redisError("OOM command not allowed when used memory > 'maxmemory'."))
		fail := func(times int) {
			for i := range times {
				log.With("component", i).Warn("reading failed", "error", unavailable)
				time.Sleep(250 * time.Millisecond)
			}
		}
		fail(100)
		log.Warn("delivery attempt failed", "error", errors.New("timeout"))
		log.Info("informed", "error", unavailable)
		time.Sleep(time.Minute)
		log.Warn("storing failed", "error", full) // is a separate state
		time.Sleep(time.Second)
		fail(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		const failure = `error="read the log: redis is not available: EOF"`
		want := []string{
			`level=WARN msg="redis is not available" ` + failure,
			`level=WARN msg="redis is still not available" ` + failure + " duration=10s suppressed_lines=40",
			`level=WARN msg="redis is still not available" ` + failure + " duration=20s suppressed_lines=80",
			`level=WARN msg="delivery attempt failed" error=timeout`,
			`level=INFO msg=informed ` + failure,
			`level=INFO msg="redis is available again" duration=25s suppressed_lines=99`,
			`level=WARN msg="redis is full" error="store a retry: redis is full: OOM command not allowed when used memory > 'maxmemory'."`,
			`level=WARN msg="redis is not available" ` + failure,
			`level=INFO msg="redis has room again" duration=0s suppressed_lines=0`,
			`level=INFO msg="redis is available again" duration=0s suppressed_lines=0`,
		}
		if got := strings.Split(strings.TrimSpace(out.String()), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}
