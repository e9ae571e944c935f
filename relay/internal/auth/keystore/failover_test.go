package keystore

import (
	"errors"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// newReplicatedStore returns a store with the key "ci" on a server with one replica that must confirm changes.
func newReplicatedStore(t *testing.T) (s *Store, replica *redistest.Server) {
	t.Helper()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	s = NewStore(conntest.Open(t, primary, redisconn.Options{MinReplicas: 1}))
	testkit.WaitFor(t, "the replica to be up to date", func() bool { return s.conn.AwaitReplicas(t.Context()) == nil })
	if _, err := s.Create(t.Context(), "ci", Spec{Hubs: []string{"h"}}); err != nil {
		t.Fatal(err)
	}
	return s, replica
}

// A failover must not make a revoked key valid again.
func TestRevoke_WaitsForReplicas(t *testing.T) {
	t.Parallel()
	s, replica := newReplicatedStore(t)
	replica.Signal(syscall.SIGSTOP)
	for range 2 { // the second call finds no key, but waits again
		if err := s.Revoke(t.Context(), "ci"); !errors.Is(err, redisconn.ErrTooFewReplicas) {
			t.Errorf("got %v, want ErrTooFewReplicas", err)
		}
	}
	replica.Signal(syscall.SIGCONT)
	testkit.WaitFor(t, "the replica to confirm the change", func() bool {
		return errors.Is(s.Revoke(t.Context(), "ci"), ErrNotFound)
	})
}

// A new secret that replicas do not have is not returned, so the old one stays valid.
func TestRotate_UndoneWithoutReplicas(t *testing.T) {
	t.Parallel()
	s, replica := newReplicatedStore(t)
	ctx := t.Context()
	stored := func() map[string]string {
		fields, err := s.client.HGetAll(ctx, s.keys).Result()
		if err != nil {
			t.Fatal(err)
		}
		delete(fields, versionField)
		return fields
	}
	before := stored()
	replica.Signal(syscall.SIGSTOP)
	if _, _, err := s.Rotate(ctx, "ci", 0); !errors.Is(err, ErrNoReplicas) {
		t.Errorf("rotate: got %v, want ErrNoReplicas", err)
	}
	if _, err := s.Create(ctx, "other", Spec{Hubs: []string{"h"}}); !errors.Is(err, ErrNoReplicas) {
		t.Errorf("create: got %v, want ErrNoReplicas", err)
	}
	if after := stored(); !maps.Equal(after, before) {
		t.Errorf("got %v, want %v", after, before)
	}
	replica.Signal(syscall.SIGCONT)
	testkit.WaitFor(t, "the replica to confirm a change", func() bool {
		_, _, err := s.Rotate(ctx, "ci", 0)
		return err == nil
	})
}

// A version does not repeat after a failover that loses the latest change, or a node would keep a key that was lost.
func TestVersion_AfterRollback(t *testing.T) {
	t.Parallel()
	s, ctx := newTestStore(t), t.Context()
	create := func(name string) string {
		t.Helper()
		if _, err := s.Create(ctx, name, Spec{Hubs: []string{"h"}}); err != nil {
			t.Fatal(err)
		}
		version, err := s.Version(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return version
	}
	first, second := create("a"), create("b")
	if err := s.client.HSet(ctx, s.keys, versionField, first).Err(); err != nil {
		t.Fatal(err)
	}
	lost := time.Now().UnixMilli()
	testkit.WaitFor(t, "the next millisecond", func() bool { return time.Now().UnixMilli() > lost+1 })
	if third := create("c"); third == first || third == second {
		t.Errorf("got version %s after %s and %s, want another one", third, first, second)
	}
}
