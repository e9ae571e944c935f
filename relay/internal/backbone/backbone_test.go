package backbone

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestMain(m *testing.M) {
	// A pool whose server is gone looks each second whether it was closed.
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// open connects to s and closes with the test.
func open(t testing.TB, s *redistest.Server, o Options) *Store {
	t.Helper()
	o.URL = s.URL()
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// note returns the i-th of a series of small notifications of a hub.
func note(hub string, i int) relay.Notification {
	return relay.Notification{
		ID: fmt.Sprintf("%024x", i), Topic: "container.created", Hub: hub, Account: "a",
		Data: fmt.Appendf(nil, `{"topic":"container.created","object":{"id":"%d"}}`, i),
	}
}

func notes(hub string, from, to int) []relay.Notification {
	var ns []relay.Notification
	for i := from; i <= to; i++ {
		ns = append(ns, note(hub, i))
	}
	return ns
}

func mustAppend(t testing.TB, b *Store, ns ...relay.Notification) {
	t.Helper()
	if _, err := b.Append(t.Context(), AppendRequest{Hub: ns[0].Hub, Notifications: ns}); err != nil {
		t.Fatal(err)
	}
}

func logOf(t testing.TB, b *Store, partition int) []relay.Notification {
	t.Helper()
	ns, err := b.Range(t.Context(), partition, "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
