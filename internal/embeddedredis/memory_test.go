package embeddedredis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func memoryClient(t *testing.T) *redis.Client {
	t.Helper()
	s, err := embeddedredis.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Dialer: s.Dialer, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() {
		_ = c.Close()
		s.Close()
		s.Close()
	})
	return c
}

func TestMemory_KeysExpire(t *testing.T) {
	c := memoryClient(t)
	if err := c.Set(t.Context(), "token", "v", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "token", "v")
	if err := c.PExpire(t.Context(), "token", 30*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the key to expire", func() error {
		if err := c.Get(context.Background(), "token").Err(); !errors.Is(err, redis.Nil) {
			return fmt.Errorf("got %w, want redis.Nil", err)
		}
		return nil
	})
}

func TestMemory_WakesBlockedReads(t *testing.T) {
	c := memoryClient(t)
	got := make(chan error, 1)
	go func() {
		read := redis.XReadArgs{Streams: []string{"s", "0"}, Block: time.Minute}
		streams, err := c.XRead(context.Background(), &read).Result()
		if err == nil && len(streams[0].Messages) != 1 {
			err = fmt.Errorf("got %v", streams)
		}
		got <- err
	}()
	if err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: "s", Values: []string{"k", "v"}}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A pipeline that exceeds all buffers needs a connection that reads while it writes.
func TestMemory_AcceptsLargePipelines(t *testing.T) {
	c := memoryClient(t)
	pipe := c.Pipeline()
	big := string(make([]byte, 4096))
	for i := range 1000 {
		pipe.Set(t.Context(), fmt.Sprint(i), big, 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func ExampleMemory() {
	ctx := context.Background()
	server, err := embeddedredis.Memory(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	c := redis.NewClient(&redis.Options{Dialer: server.Dialer})
	defer func() { _ = c.Close() }()
	fmt.Println(c.Set(ctx, "greeting", "hello", 0).Err(), c.Get(ctx, "greeting").Val())
	// Output: <nil> hello
}
