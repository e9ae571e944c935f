package storage

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// A client that stores as much as it may never fills the memory, so a quiet one can always store its events.
func TestMonitor_TakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			maxMemory = 32 << 20
			event     = 2 << 10
		)
		memory := redisconn.Memory{Used: maxMemory / 2, Max: maxMemory}
		m, _ := newTestMonitor(new(bytes.Buffer), func() (redisconn.Memory, error) { return memory, nil })
		m.Measure(t.Context())
		store := func(client string) bool {
			err := m.TakeRoom(client, event)
			var public *relay.Error
			if err != nil && (!errors.As(err, &public) || public.Code != relay.CodeStorageFull) {
				t.Fatalf("got error %v, want %s", err, relay.CodeStorageFull)
			}
			if err == nil {
				memory.Used += event
			}
			return err == nil
		}
		for range 10_000 { // alone
			if !store("flood") {
				t.Fatal("a client that is alone has a limit")
			}
		}
		memory.Used = maxMemory / 2
		for second := range 600 {
			if !store("quiet") {
				t.Fatalf("the quiet client was rejected in second %d", second)
			}
			stored := 0
			for store("flood") {
				if stored++; stored > 10_000 {
					t.Fatal("a client has no limit")
				}
			}
			time.Sleep(time.Second)
			m.Measure(t.Context())
			if m.Check() != nil {
				t.Fatalf("publishing stopped in second %d", second)
			}
			memory.Used = max(memory.Used-100*event, 0) // the log is trimmed
		}
		if memory.Used < maxMemory*80/100 {
			t.Errorf("only %d bytes of %d are used", memory.Used, maxMemory)
		}
		time.Sleep(activeTime + time.Second)
		m.Measure(t.Context())
		if !store("flood") || m.TakeRoom("flood", maxMemory) != nil {
			t.Error("a client that is alone again has a limit")
		}
	})
}

// Without a limit of the memory, clients have none.
func TestMonitor_TakeRoomWithoutLimit(t *testing.T) {
	t.Parallel()
	m, _ := newTestMonitor(new(bytes.Buffer), func() (redisconn.Memory, error) { return redisconn.Memory{Used: 1 << 40}, nil })
	for range 3 {
		if m.TakeRoom("a", 1<<40) != nil || m.TakeRoom("b", 1<<40) != nil {
			t.Error("a client was rejected")
		}
		m.Measure(t.Context())
	}
}
