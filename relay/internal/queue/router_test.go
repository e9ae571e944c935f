package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// fakeHandler is a sink that a test enables and disables.
type fakeHandler struct {
	name   string
	stores bool // deliveries are stored elsewhere

	mu       sync.Mutex
	handle   func(context.Context, relay.Delivery) error
	received []relay.Delivery
	enabled  chan struct{} // closed while enabled
	disabled chan struct{} // closed while disabled
}

func newHandler(name string, handle func(context.Context, relay.Delivery) error) *fakeHandler {
	h := &fakeHandler{name: name, handle: handle, enabled: make(chan struct{}), disabled: make(chan struct{})}
	close(h.enabled)
	return h
}

func (h *fakeHandler) Name() string { return h.name }

func (h *fakeHandler) Handle(ctx context.Context, d relay.Delivery) (stored bool, err error) {
	h.mu.Lock()
	h.received = append(h.received, d)
	handle := h.handle
	h.mu.Unlock()
	return h.stores, handle(ctx, d)
}

func (h *fakeHandler) WaitEnabled(ctx context.Context) (<-chan struct{}, error) {
	h.mu.Lock()
	enabled, disabled := h.enabled, h.disabled
	h.mu.Unlock()
	select {
	case <-enabled:
		return disabled, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *fakeHandler) setEnabled(enabled bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if enabled {
		h.disabled = make(chan struct{})
		close(h.enabled)
		return
	}
	h.enabled = make(chan struct{})
	close(h.disabled)
}

func (h *fakeHandler) isDisabled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.disabled:
		return true
	default:
		return false
	}
}

func (h *fakeHandler) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.received)
}

// routerTest is a Redis with the queue of sink "a".
type routerTest struct {
	*testStores
	t *testing.T
}

func newRouterTest(t *testing.T) *routerTest {
	t.Helper()
	return &routerTest{open(t, redistest.Start(t), redisconn.Options{}), t}
}

func (r *routerTest) subscriber(log *slog.Logger) *subscriber.Subscriber {
	r.t.Helper()
	s, err := subscriber.New(subscriber.Config{
		Commands: r.Commands(), Readers: r.Readers(), Group: "hubrelay", Consumer: "node-1", Log: log,
		Streams:     r.streams,
		MaxInFlight: func(string) int { return 4 },
		NackDelay:   10 * time.Millisecond, HandlerGrace: 15 * time.Second,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

// route runs a router until stop is called or the test ends.
func (r *routerTest) route(s message.Subscriber, h Handler, log *slog.Logger) (stop func()) {
	r.t.Helper()
	router, err := NewRouter(RouterOptions{Handler: h, Subscriber: s, Log: log, CloseTimeout: testkit.Patience})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := router.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stop)
	return stop
}

// enqueue adds n entries to the queue.
func (r *routerTest) enqueue(n int) {
	r.t.Helper()
	for i := range n {
		err := r.Commands().XAdd(r.t.Context(), &redis.XAddArgs{
			Stream: Key(r.Keys(), "a", 0),
			Values: []string{"id", fmt.Sprint("id-", i), "topic", "t0", "hub", "h1", "account", "", "data", "{}"},
		}).Err()
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// queueLength returns -1 if Redis does not respond.
func (r *routerTest) queueLength() int64 {
	n, err := r.Commands().XLen(context.Background(), Key(r.Keys(), "a", 0)).Result()
	if err != nil {
		return -1
	}
	return n
}

func succeed(context.Context, relay.Delivery) error { return nil }

func TestRouter_Delivers(t *testing.T) {
	t.Parallel()
	r := newRouterTest(t)
	r.enqueue(50)
	h := newHandler("a", succeed)
	stop := r.route(r.subscriber(nil), h, nil)
	testkit.WaitFor(t, "all entries to be acked", func() bool { return h.count() == 50 && r.queueLength() == 0 })
	stop()
	d := h.received[0]
	n := d.Notifications[0]
	if !strings.HasPrefix(d.ID, "id-") || d.Attempt != 1 || n.ID != d.ID || n.Topic != "t0" || n.Hub != "h1" ||
		len(n.Data) == 0 || !streamid.IsValid(n.Cursor) {
		t.Errorf("got delivery %+v", d)
	}
}

func TestRouter_RedeliversAfterErrorAndPanic(t *testing.T) {
	t.Parallel()
	r := newRouterTest(t)
	r.enqueue(3)
	var mu sync.Mutex
	seen := map[string]int{}
	h := newHandler("a", func(_ context.Context, d relay.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		seen[d.ID]++
		switch seen[d.ID] {
		case 1:
			return errors.New("redis is not available")
		case 2:
			panic("a bug")
		}
		return nil
	})
	r.route(r.subscriber(nil), h, nil)
	testkit.WaitForValue(t, "all entries to be acked", 0, func() int64 { return r.queueLength() })
	if n := h.count(); n != 9 {
		t.Errorf("got %d calls of Handle, want 9", n)
	}
}

// After a failover, Redis may lack what the handler stored. See subscriber.MarkStored.
func TestRouter_MarksStoredDeliveries(t *testing.T) {
	t.Parallel()
	for _, stores := range []bool{false, true} {
		r := &Router{o: RouterOptions{Handler: &fakeHandler{handle: succeed, stores: stores}}}
		m, marked := message.NewMessage("id-1", nil), message.NewMessage("id-1", nil)
		subscriber.MarkStored(marked)
		if err := r.consumeMessage(m, nil); err != nil {
			t.Fatal(err)
		}
		if got := maps.Equal(m.Metadata, marked.Metadata); got != stores {
			t.Errorf("the message is marked as stored: %t, want %t", got, stores)
		}
	}
}

func TestRouter_KeepsQueueWhileSinkIsDisabled(t *testing.T) {
	t.Parallel()
	r := newRouterTest(t)
	r.enqueue(20)
	var text testkit.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	var h *fakeHandler
	var once sync.Once
	h = newHandler("a", func(context.Context, relay.Delivery) error {
		once.Do(func() { h.setEnabled(false) })
		if h.isDisabled() {
			return errors.New("gone")
		}
		return nil
	})
	r.route(r.subscriber(log), h, log)
	testkit.WaitFor(t, "the sink to be disabled", h.isDisabled)
	if r.queueLength() == 0 {
		t.Fatal("the queue is empty while the sink is disabled")
	}
	h.mu.Lock()
	h.handle = succeed
	h.mu.Unlock()
	h.setEnabled(true)
	testkit.WaitForValue(t, "all entries to be acked", 0, func() int64 { return r.queueLength() })
	if s := text.String(); strings.Contains(s, "level=ERROR") || strings.Contains(s, "level=INFO") {
		t.Errorf("a disabled sink must not be logged as error or info:\n%s", s)
	}
}

func TestRouter_StopWaitsForHandlers(t *testing.T) {
	t.Parallel()
	r := newRouterTest(t)
	r.enqueue(10)
	entered, leave := make(chan struct{}, 16), make(chan struct{})
	h := newHandler("a", func(context.Context, relay.Delivery) error {
		entered <- struct{}{}
		<-leave
		return nil
	})
	stop := r.route(r.subscriber(nil), h, nil)
	for range 4 {
		<-entered
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	select {
	case <-stopped:
		t.Error("the router stopped while handlers were running")
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	<-stopped
	testkit.WaitForValue(t, "the handled entries to be acked", 0, func() int64 { return r.queueLength() - int64(10-h.count()) })
}

func TestRouter_LogsClosedSubscriber(t *testing.T) {
	t.Parallel()
	r := newRouterTest(t)
	s := r.subscriber(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var text testkit.Buffer
	stop := r.route(s, newHandler("a", nil), slog.New(slog.NewTextHandler(&text, nil)))
	testkit.WaitFor(t, "the log message", func() bool {
		return strings.Contains(text.String(), "reading the queue of a sink failed")
	})
	stop()
}

func TestNewRouter_RequiresHandler(t *testing.T) {
	t.Parallel()
	if _, err := NewRouter(RouterOptions{}); err == nil {
		t.Error("NewRouter without a handler was accepted")
	}
}
