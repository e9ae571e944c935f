// Package conntest helps to test the stores on a [redisconn.Conn].
package conntest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const openTimeout = 2 * time.Minute

// Open connects to s, and closes the connection at the end of the test.
func Open(tb testing.TB, s *redistest.Server, o redisconn.Options) *redisconn.Conn {
	tb.Helper()
	o.URL = s.URL()
	return OpenOptions(tb, o)
}

// OpenOptions connects with any options, and closes the connection at the end of the test.
func OpenOptions(tb testing.TB, o redisconn.Options) *redisconn.Conn {
	tb.Helper()
	if testing.Verbose() && o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(tb.Output(), nil))
	}
	ctx, cancel := context.WithTimeout(tb.Context(), openTimeout)
	defer cancel()
	c, err := redisconn.Open(ctx, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// OpenMemory connects to a Redis in this process, as the daemon does for "memory:".
func OpenMemory(tb testing.TB) *redisconn.Conn {
	tb.Helper()
	m, err := embeddedredis.Memory(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.Close)
	return OpenOptions(tb, redisconn.Options{Dialer: m.Dialer})
}

// OnBoth runs a test on a real Redis and on a Redis in this process.
func OnBoth(t *testing.T, test func(*testing.T, *redisconn.Conn)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) { test(t, Open(t, redistest.Start(t), redisconn.Options{})) })
	t.Run("memory", func(t *testing.T) { test(t, OpenMemory(t)) })
}

// Notification returns the i-th notification of a hub, with the ID "%024x" of i.
func Notification(hub string, i int) relay.Notification {
	return relay.Notification{
		ID: fmt.Sprintf("%024x", i), Topic: "container.created", Hub: hub, Account: "a",
		Data: fmt.Appendf(nil, `{"topic":"container.created","object":{"id":"%d"}}`, i),
	}
}

// Notifications returns the notifications of a hub from one number to another, both included.
func Notifications(hub string, from, to int) []relay.Notification {
	var list []relay.Notification
	for i := from; i <= to; i++ {
		list = append(list, Notification(hub, i))
	}
	return list
}

// Killer is a hook that simulates the death of a process: it sends no command after command number Last. With Executed,
// that command still reaches Redis, but its reply is lost.
type Killer struct {
	Last     int64
	Executed bool
	// Sent counts the commands.
	Sent atomic.Int64
}

var _ redis.Hook = (*Killer)(nil)

// errKilled is an error like that of a lost connection.
var errKilled = fmt.Errorf("killed: %w", io.EOF)

func (k *Killer) run(send func() error) error {
	n := k.Sent.Add(1)
	switch {
	case n < k.Last:
		return send()
	case n == k.Last && k.Executed:
		_ = send()
	}
	return errKilled
}

// DialHook does nothing.
func (k *Killer) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts the command.
func (k *Killer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := k.run(func() error { return next(ctx, cmd) })
		if errors.Is(err, errKilled) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook counts the pipeline as one command.
func (k *Killer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := k.run(func() error { return next(ctx, cmds) })
		if errors.Is(err, errKilled) {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// AfterScript returns a hook that calls run once, when the first script has returned without an error.
func AfterScript(run func()) redis.Hook { return &afterScript{run: run} }

type afterScript struct {
	once sync.Once
	run  func()
}

func (*afterScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*afterScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *afterScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			a.once.Do(a.run)
		}
		return err
	}
}
