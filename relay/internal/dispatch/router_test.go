package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/backbone"
)

// fakeHandler is a sink's pipeline that a test turns on and off.
type fakeHandler struct {
	name   string
	handle func(context.Context, relay.Delivery) error

	mu  sync.Mutex
	got []relay.Delivery
	on  chan struct{} // closed while enabled
	off chan struct{} // closed while disabled
}

func newHandler(name string, handle func(context.Context, relay.Delivery) error) *fakeHandler {
	h := &fakeHandler{name: name, handle: handle, on: make(chan struct{}), off: make(chan struct{})}
	close(h.on)
	return h
}

func (h *fakeHandler) Name() string { return h.name }

func (h *fakeHandler) Handle(ctx context.Context, d relay.Delivery) error {
	h.mu.Lock()
	h.got = append(h.got, d)
	handle := h.handle
	h.mu.Unlock()
	return handle(ctx, d)
}

func (h *fakeHandler) WaitEnabled(ctx context.Context) (<-chan struct{}, error) {
	h.mu.Lock()
	on, off := h.on, h.off
	h.mu.Unlock()
	select {
	case <-on:
		return off, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *fakeHandler) enable(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if yes {
		h.off = make(chan struct{})
		close(h.on)
		return
	}
	h.on = make(chan struct{})
	close(h.off)
}

func (h *fakeHandler) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.got)
}

func (e *env) subscriber(log *slog.Logger) *backbone.Subscriber {
	e.t.Helper()
	s, err := backbone.NewSubscriber(backbone.SubscriberConfig{
		Commands: e.b.Commands(), Readers: e.b.Readers(), Group: "hubrelay", Consumer: "node-1", Log: log,
		Streams:     func(sink string) []string { return []string{e.b.Keys().Queue(sink, 0)} },
		MaxInFlight: func(string) int { return 4 },
		NackDelay:   10 * time.Millisecond, HandlerGrace: 15 * time.Second,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			e.t.Error(err)
		}
	})
	return s
}

func (e *env) route(s message.Subscriber, h Handler, log *slog.Logger) (stop func()) {
	e.t.Helper()
	r, err := NewRouter(RouterOptions{Handler: h, Subscriber: s, Log: log, CloseTimeout: 5 * time.Second})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			e.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	e.t.Cleanup(stop)
	return stop
}

func (e *env) enqueue(sink string, n int) {
	e.t.Helper()
	stop := e.run(e.options(Sink{Name: sink, FromStart: true}), false)
	before := e.queueLength(sink)
	e.publish(fmt.Sprint("t", before), "h1", n)
	stop()
	stop = e.run(e.options(Sink{Name: sink, FromStart: true}), false)
	testkit.WaitFor(e.t, "enqueued", func() bool { return e.queueLength(sink) >= before+int64(n) })
	stop()
}

func TestRouterHandsOver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.enqueue("a", 50)
	h := newHandler("a", func(context.Context, relay.Delivery) error { return nil })
	stop := e.route(e.subscriber(nil), h, nil)
	testkit.WaitFor(t, "acked", func() bool { return h.count() == 50 && e.queueLength("a") == 0 })
	stop()
	d := h.got[0]
	n := d.Notifications[0]
	if !strings.HasPrefix(d.ID, "h1-t0-") || d.Attempt != 1 || n.ID != d.ID || n.Topic != "t0" || n.Hub != "h1" ||
		len(n.Data) == 0 || !backbone.IsEntryID(n.Cursor) {
		t.Errorf("%+v", d)
	}
}

func TestRouterKeepsWhatFails(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.enqueue("a", 3)
	var mu sync.Mutex
	seen := map[string]int{}
	h := newHandler("a", func(_ context.Context, d relay.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		seen[d.ID]++
		switch seen[d.ID] {
		case 1:
			return errors.New("redis is away")
		case 2:
			panic("a bug")
		}
		return nil
	})
	e.route(e.subscriber(nil), h, nil)
	testkit.WaitFor(t, "acked", func() bool { return e.queueLength("a") == 0 })
	if n := h.count(); n != 9 {
		t.Errorf("handled %d times, want each of 3 three times", n)
	}
}

// A disabled sink gets nothing and keeps its queue; enabled again it goes on.
func TestRouterFollowsTheSink(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.enqueue("a", 20)
	var text lockedBuffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	var h *fakeHandler
	var once sync.Once
	gone := errors.New("gone")
	h = newHandler("a", func(context.Context, relay.Delivery) error {
		err := error(nil)
		once.Do(func() { h.enable(false) })
		h.mu.Lock()
		off := h.off
		h.mu.Unlock()
		select {
		case <-off:
			err = gone
		default:
		}
		return err
	})
	e.route(e.subscriber(log), h, log)
	testkit.WaitFor(t, "disabled", func() bool { return h.count() > 0 })
	before := e.queueLength("a")
	if before == 0 {
		t.Fatal("the backlog is gone")
	}
	other := newHandler("a", func(context.Context, relay.Delivery) error { return nil })
	h.mu.Lock()
	h.handle = other.handle
	h.mu.Unlock()
	h.enable(true)
	testkit.WaitFor(t, "all acked", func() bool { return e.queueLength("a") == 0 })
	if s := text.String(); strings.Contains(s, "level=ERROR") || strings.Contains(s, "level=INFO") {
		t.Errorf("a disabled sink is no error and a router no news:\n%s", s)
	}
}

// At the end a running handler may finish, and what was not handled stays.
func TestRouterStops(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.enqueue("a", 10)
	entered, leave := make(chan struct{}, 16), make(chan struct{})
	h := newHandler("a", func(context.Context, relay.Delivery) error { entered <- struct{}{}; <-leave; return nil })
	stop := e.route(e.subscriber(nil), h, nil)
	for range 4 {
		<-entered
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	select {
	case <-stopped:
		t.Error("stopped while handlers run")
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	<-stopped
	testkit.WaitFor(t, "four acked", func() bool { return e.queueLength("a") == 6 })
}

func TestRouterOfAClosedSubscriber(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.subscriber(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h := newHandler("a", nil)
	var text lockedBuffer
	stop := e.route(s, h, slog.New(slog.NewTextHandler(&text, nil)))
	testkit.WaitFor(t, "said so", func() bool { return strings.Contains(text.String(), "cannot be read") })
	stop()
}

func TestNewRouterNeeds(t *testing.T) {
	t.Parallel()
	if _, err := NewRouter(RouterOptions{}); err == nil {
		t.Error("a router without anything")
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
