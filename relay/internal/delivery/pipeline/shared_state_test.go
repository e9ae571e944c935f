package pipeline

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

func TestSharedState(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a, b := e.store.SharedStates.ForSink("team"), store.New(e.client, testKeys()).SharedStates.ForSink("team")
	value, held, err := a.Lock(t.Context(), "container c1", time.Minute)
	if err != nil || value != "" {
		t.Fatalf("%q, %v", value, err)
	}
	if _, _, err := b.Lock(t.Context(), "container c1", time.Minute); !errors.Is(err, relay.ErrLocked) {
		t.Errorf("another node took it too: %v", err)
	}
	if _, other, err := b.Lock(t.Context(), "container c2", time.Minute); err != nil ||
		other.Release(t.Context()) != nil {
		t.Errorf("another name is taken: %v", err)
	}
	if err := held.Save(t.Context(), "first", time.Hour); err != nil {
		t.Fatal(err)
	}
	if value, held, err = b.Lock(t.Context(), "container c1", time.Minute); err != nil || value != "first" {
		t.Fatalf("%q, %v", value, err)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	value, held, err = a.Lock(t.Context(), "container c1", time.Minute)
	if err != nil || value != "first" {
		t.Fatalf("a release changed it: %q, %v", value, err)
	}
	if err := held.Save(t.Context(), "", time.Hour); err != nil {
		t.Fatal(err)
	}
	keys, err := e.client.Keys(t.Context(), "hubrelay:shared:*").Result()
	if err != nil || len(keys) != 0 {
		t.Errorf("what was forgotten or never kept is there: %s, %v", keys, err)
	}
}

// A node that was killed while it held a lock, and one that was late, do not overwrite the value of another node.
func TestSharedState_ExpiredLock(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	m := e.store.SharedStates.ForSink("team")
	_, late, err := m.Lock(t.Context(), "c1", 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	var held relay.StateLock
	testkit.Eventually(t, "the name to be free", func() (err error) {
		if _, held, err = m.Lock(t.Context(), "c1", time.Minute); err != nil && !errors.Is(err, relay.ErrLocked) {
			t.Fatal(err)
		}
		return err
	})
	if err := held.Save(t.Context(), "the other's", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := late.Save(t.Context(), "late", time.Hour); err != nil {
		t.Fatal(err)
	}
	if value, held, err := m.Lock(t.Context(), "c1", time.Minute); err != nil || value != "the other's" ||
		held.Release(t.Context()) != nil {
		t.Errorf("%q, %v", value, err)
	}
}

// Many goroutines increment a value, and no increment is lost.
func TestSharedState_Concurrent(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var wg sync.WaitGroup
	const workers, each = 8, 10
	for range workers {
		wg.Go(func() {
			m := store.New(e.client, testKeys()).SharedStates.ForSink("team")
			for done := 0; done < each; {
				value, held, err := m.Lock(t.Context(), "count", time.Minute)
				if errors.Is(err, relay.ErrLocked) {
					continue
				}
				n := 0
				_, _ = fmt.Sscan(value, &n)
				if err == nil {
					err = held.Save(t.Context(), fmt.Sprint(n+1), time.Hour)
				}
				if err != nil {
					t.Error(err)
					return
				}
				done++
			}
		})
	}
	wg.Wait()
	if value, _, err := e.store.SharedStates.ForSink("team").Lock(t.Context(), "count", time.Minute); err != nil ||
		value != fmt.Sprint(workers*each) {
		t.Errorf("%q, %v", value, err)
	}
}
