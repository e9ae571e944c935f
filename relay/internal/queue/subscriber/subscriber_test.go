package subscriber_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/queue/subscriber"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const patience = testkit.Patience

// testRedis is a Redis server with a publisher.
type testRedis struct {
	t      *testing.T
	server *redistest.Server
	redis  *redis.Client
	pub    *publisher
}

func newTestRedis(t *testing.T, args ...string) *testRedis {
	t.Helper()
	server := redistest.Start(t, args...)
	c := newClient(t, server.Socket)
	pub := newPublisher(c)
	return &testRedis{t: t, server: server, redis: c, pub: pub}
}

func (r *testRedis) subscriber(change func(*subscriber.Config)) *subscriber.Subscriber {
	r.t.Helper()
	cfg := subscriber.Config{
		Commands: r.redis, Readers: r.redis, Group: "sinks", Consumer: "node-0", NackDelay: time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := subscriber.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (r *testRedis) subscribe(s *subscriber.Subscriber, topic string) <-chan *message.Message {
	r.t.Helper()
	c, err := s.Subscribe(context.Background(), topic)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// publish appends messages whose IDs and payloads are the numbers from first to end-1.
func (r *testRedis) publish(topic string, first, end int) {
	r.t.Helper()
	var list []*message.Message
	for i := first; i < end; i++ {
		list = append(list, message.NewMessage(strconv.Itoa(i), []byte(strconv.Itoa(i))))
	}
	if err := r.pub.Publish(topic, list...); err != nil {
		r.t.Fatal(err)
	}
}

func next(t *testing.T, c <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-c:
		if !ok {
			t.Fatal("got a closed channel, want a message")
		}
		return m
	case <-time.After(patience):
		t.Fatal("got no message")
	}
	return nil
}

// ackAll acks messages until it has received each of the numbers from first to end-1.
func ackAll(t *testing.T, c <-chan *message.Message, first, end int) {
	t.Helper()
	missing := make(map[string]bool)
	for i := first; i < end; i++ {
		missing[strconv.Itoa(i)] = true
	}
	for len(missing) > 0 {
		m := next(t, c)
		delete(missing, m.UUID)
		m.Ack()
	}
}

func (r *testRedis) expectEmpty(stream string) {
	r.t.Helper()
	testkit.Eventually(r.t, stream+" to be empty", func() error {
		n, err := r.redis.XLen(context.Background(), stream).Result()
		if err == nil && n > 0 {
			err = fmt.Errorf("%d entries left in %s", n, stream)
		}
		return err
	})
}

func TestSubscriber_ReadsAllFields(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	m := message.NewMessage("id-1", []byte("{\"a\":\x00\"ü\"}"))
	m.Metadata.Set("topic", "container.created")
	m.Metadata.Set("cursor", "not written")
	if err := r.pub.Publish("q", m); err != nil {
		t.Fatal(err)
	}
	stored := r.redis.XRange(t.Context(), "q", "-", "+").Val()[0]
	if len(stored.Values) != 3 || stored.Values["id"] != "id-1" || stored.Values["topic"] != "container.created" {
		t.Errorf("got fields %v", stored.Values)
	}
	got := next(t, r.subscribe(r.subscriber(nil), "q"))
	if got.UUID != m.UUID || string(got.Payload) != string(m.Payload) ||
		got.Metadata.Get("topic") != "container.created" {
		t.Errorf("got message %v with payload %q", got, got.Payload)
	}
	if got.Metadata.Get("cursor") != stored.ID {
		t.Errorf("got cursor %q, want %q", got.Metadata.Get("cursor"), stored.ID)
	}
	for _, key := range []string{"id", "data"} {
		bad := message.NewMessage("1", nil)
		bad.Metadata.Set(key, "x")
		if err := r.pub.Publish("q", bad); err == nil {
			t.Errorf("metadata key %q: got no error", key)
		}
	}
}

func TestClose_StoresAcks(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("q", 0, 1000)
	s := r.subscriber(nil)
	ackAll(t, r.subscribe(s, "q"), 0, 1000)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.redis.XLen(t.Context(), "q").Val(); n != 0 {
		t.Errorf("got %d entries, want 0", n)
	}
	if n := r.redis.XPending(t.Context(), "q", "sinks").Val().Count; n != 0 {
		t.Errorf("got %d pending entries, want 0", n)
	}
	if _, err := s.Subscribe(t.Context(), "q"); !errors.Is(err, subscriber.ErrClosed) {
		t.Errorf("Subscribe after Close: got %v, want ErrClosed", err)
	}
}

func TestSubscribe_BeginsWithPendingEntries(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("q", 0, 300)
	s := r.subscriber(nil)
	next(t, r.subscribe(s, "q"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.publish("q", 300, 310)
	c := r.subscribe(r.subscriber(nil), "q")
	for i := range 310 {
		m := next(t, c)
		if m.UUID != strconv.Itoa(i) {
			t.Fatalf("got message %s, want %d", m.UUID, i)
		}
		m.Ack()
	}
	r.expectEmpty("q")
}

func TestSubscriber_ClaimsEntriesOfDeadConsumer(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("q", 0, 500)
	r.redis.XGroupCreate(t.Context(), "q", "sinks", "0")
	if err := r.redis.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: "sinks", Consumer: "dead", Streams: []string{"q", ">"}, Count: 400,
	}).Err(); err != nil {
		t.Fatal(err)
	}
	r.redis.XDel(t.Context(), "q", r.redis.XRange(t.Context(), "q", "-", "+").Val()[0].ID) // a pending ID without entry
	s := r.subscriber(func(c *subscriber.Config) { c.ClaimIdle = 100 * time.Millisecond })
	ackAll(t, r.subscribe(s, "q"), 1, 500)
	r.expectEmpty("q")
	testkit.Eventually(t, "no pending entries", func() error {
		if n := r.redis.XPending(context.Background(), "q", "sinks").Val().Count; n != 0 {
			return fmt.Errorf("got %d pending entries, want 0", n)
		}
		return nil
	})
}

func TestSubscriber_KeepsEntriesInMemoryAlive(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("q", 0, 3)
	const idle = 30 * time.Second
	quick := func(name string) func(*subscriber.Config) {
		return func(c *subscriber.Config) {
			c.Consumer, c.ClaimIdle, c.ClaimInterval = name, idle, 20*time.Millisecond
		}
	}
	c := r.subscribe(r.subscriber(quick("slow")), "q")
	m := next(t, c) // the other entries are in memory
	claimed := r.subscribe(r.subscriber(quick("other")), "q")
	for last, heartbeats := time.Duration(0), 0; heartbeats < 1; { // each resets the idle time
		args := redis.XPendingExtArgs{Stream: "q", Group: "sinks", Start: "-", End: "+", Count: 1}
		list, err := r.redis.XPendingExt(t.Context(), &args).Result()
		if err != nil || len(list) != 1 || list[0].Idle > idle {
			t.Fatalf("got pending entries %+v, %v", list, err)
		}
		if list[0].Idle < last {
			heartbeats++
		}
		last = list[0].Idle
		select {
		case m := <-claimed:
			t.Fatalf("message %s of a live consumer was claimed", m.UUID)
		case <-time.After(10 * time.Millisecond):
		}
	}
	m.Ack()
	ackAll(t, c, 1, 3)
	r.expectEmpty("q")
}

func TestSubscriber_LimitsEntriesInMemory(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("q", 0, 5000)
	s := r.subscriber(func(c *subscriber.Config) { c.ClaimInterval = 10 * time.Millisecond })
	c := r.subscribe(s, "q")
	next(t, c)
	r.publish("other", 0, 1)
	next(t, r.subscribe(s, "other")).Ack() // a full topic does not block others
	if n := r.redis.XPending(t.Context(), "q", "sinks").Val().Count; n > 513 {
		t.Errorf("got %d entries in memory, want at most 513", n)
	}
}

// Entries of 100 KB are limited by their size: a read has at most 4 MiB, and one more is sent in advance.
func TestSubscriber_LimitsBytesInMemory(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	const count = 600
	payload := bytes.Repeat([]byte("x"), 100_000)
	for i := range count {
		if err := r.pub.Publish("q", message.NewMessage(strconv.Itoa(i), payload)); err != nil {
			t.Fatal(err)
		}
	}
	s := r.subscriber(func(c *subscriber.Config) { c.ClaimInterval = 10 * time.Millisecond })
	c := r.subscribe(s, "q")
	first := next(t, c)
	r.publish("other", 0, 1)
	next(t, r.subscribe(s, "other")).Ack()
	if n := r.redis.XPending(t.Context(), "q", "sinks").Val().Count; n > 130 {
		t.Errorf("got %d entries in memory, want at most 130", n)
	}
	first.Ack()
	ackAll(t, c, 1, count)
	r.expectEmpty("q")
}

// Large entries that follow small ones do not fill the memory, however many topics do not work on them. All are delivered,
// in order.
func TestSubscriber_LimitsBytesOfBurst(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	const topics, small, large, size = 30, 100, 60, 100_000
	s := r.subscriber(nil)
	channels := make([]<-chan *message.Message, topics)
	for i := range channels {
		topic := fmt.Sprint("q", i)
		r.publish(topic, 0, small)
		channels[i] = r.subscribe(s, topic)
		ackAll(t, channels[i], 0, small)
	}
	payload := bytes.Repeat([]byte("x"), size)
	var burst []*message.Message
	for i := range large {
		burst = append(burst, message.NewMessage(strconv.Itoa(small+i), payload))
	}
	for i := range channels {
		if err := r.pub.Publish(fmt.Sprint("q", i), burst...); err != nil {
			t.Fatal(err)
		}
	}
	highest := int64(0)
	testkit.Eventually(t, "entries of all topics", func() error {
		highest = max(highest, s.WaitingBytes())
		for i := range topics {
			topic := fmt.Sprint("q", i)
			if n := r.redis.XPending(context.Background(), topic, "sinks").Val().Count; n == 0 {
				return fmt.Errorf("topic %s has none", topic)
			}
		}
		return nil
	})
	limit := int64(subscriber.SharedBufferBytes + subscriber.TopicBufferBytes + topics*(subscriber.SmallReadBytes+2*size))
	for i, c := range channels {
		for n := small; n < small+large; n++ {
			m := next(t, c)
			highest = max(highest, s.WaitingBytes())
			if m.UUID != strconv.Itoa(n) {
				t.Fatalf("topic q%d: got message %s, want %d", i, m.UUID, n)
			}
			m.Ack()
		}
	}
	if highest > limit {
		t.Errorf("got %d bytes in memory, want at most %d", highest, limit)
	}
	if n := s.WaitingBytes(); n != 0 {
		t.Errorf("got %d bytes in memory at the end, want 0", n)
	}
}

func TestSubscribe_InterruptsBlockedRead(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	s := r.subscriber(nil)
	const topics = 20
	slow := 0
	for i := range topics {
		begin := time.Now()
		topic := fmt.Sprint("q", i)
		r.publish(topic, 0, 1)
		next(t, r.subscribe(s, topic)).Ack()
		r.expectEmpty(topic)                          // by then the reader blocks or will block soon
		if time.Since(begin) > redisconn.MaxBlock/2 { // every read would end after MaxBlock anyway
			slow++
		}
	}
	if slow > topics/2 {
		t.Errorf("%d of %d reads were not interrupted", slow, topics)
	}
}

func TestSubscriber_KeepsOrderOfKeys(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	const keys, each = 20, 50
	var list []*message.Message
	for i := range keys * each {
		m := message.NewMessage(strconv.Itoa(i), nil)
		m.Metadata.Set("hub", strconv.Itoa(i%keys))
		list = append(list, m)
	}
	if err := r.pub.Publish("q", list...); err != nil {
		t.Fatal(err)
	}
	s := r.subscriber(func(c *subscriber.Config) {
		c.MaxInFlight = func(string) int { return 8 }
		c.Key = func(_ string, m *message.Message) string { return m.Metadata.Get("hub") }
	})
	c := r.subscribe(s, "q")
	var mu sync.Mutex
	due, inFlight := make(map[string]int), make(map[string]bool)
	var handlers sync.WaitGroup
	for left := keys * each; left > 0; {
		m := next(t, c)
		key := m.Metadata.Get("hub")
		mu.Lock()
		if inFlight[key] {
			t.Errorf("key %s: got two messages in flight", key)
		}
		inFlight[key] = true
		if n, _ := strconv.Atoi(m.UUID); n/keys != due[key] {
			t.Errorf("key %s: got message %d, want %d", key, n/keys, due[key])
		}
		ok := rand.IntN(4) > 0
		if ok {
			due[key]++
			left--
		}
		mu.Unlock()
		handlers.Go(func() {
			mu.Lock()
			inFlight[key] = false
			mu.Unlock()
			if ok {
				m.Ack()
			} else {
				m.Nack()
			}
		})
	}
	handlers.Wait()
	r.expectEmpty("q")
}

func TestSubscribe_WaitsForEarlierSubscription(t *testing.T) {
	t.Parallel()
	r := newTestRedis(t)
	r.publish("q", 0, 100)
	s := r.subscriber(func(c *subscriber.Config) { c.HandlerGrace = patience })
	ctx, cancel := context.WithCancel(t.Context())
	old, err := s.Subscribe(ctx, "q")
	if err != nil {
		t.Fatal(err)
	}
	first := next(t, old)
	successor := r.subscribe(s, "q")
	cancel()
	select {
	case m := <-successor:
		t.Fatalf("got message %s while the earlier subscription has one in flight", m.UUID)
	case <-time.After(50 * time.Millisecond):
	}
	if first.Context().Err() != nil {
		t.Error("the context of the message ended before HandlerGrace")
	}
	first.Ack() // late, but accepted
	for i := 1; i < 100; i++ {
		m := next(t, successor)
		if m.UUID != strconv.Itoa(i) {
			t.Fatalf("got message %s, want %d", m.UUID, i)
		}
		m.Ack()
	}
	if _, open := <-old; open {
		t.Error("the channel of the earlier subscription is open")
	}
	r.expectEmpty("q")
}

func TestSubscriber_InMemoryRedis(t *testing.T) {
	t.Parallel()
	server, err := embeddedredis.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	c := redis.NewClient(&redis.Options{Dialer: server.Dialer, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	pub := newPublisher(c)
	r := &testRedis{t: t, redis: c, pub: pub}
	s := r.subscriber(nil)
	messages := r.subscribe(s, "q")
	r.publish("q", 0, 600)
	m := next(t, messages)
	m.Nack()
	ackAll(t, messages, 0, 600)
	r.subscribe(s, "later")
	r.publish("later", 0, 1)
	r.expectEmpty("q")
}
