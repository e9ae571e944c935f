package forward

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// A node that starts after a change rejects decisions that are older.
func TestChangeStore_LoadOnNewNode(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	s := NewChangeStore(c.Commands(), c.Keys(), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	before := time.Now()
	s.Add("acme", "hub/1")
	isChanged := func(account, hub string, verifiedAt time.Time) bool {
		t.Helper()
		v := NewVerifier(Options{Log: slog.New(slog.DiscardHandler)})
		if err := s.Load(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		return v.HasChanged(&auth.Grant{Account: account, Hub: hub, Hubs: []string{hub}, VerifiedAt: verifiedAt})
	}
	testkit.WaitFor(t, "the change", func() bool { return isChanged("acme", "hub/1", before) })
	if isChanged("acme", "hub-2", before) || isChanged("globex", "hub/1", before) {
		t.Error("a grant of another hub or account counts as changed")
	}
	s.Add("team/a", "h")
	testkit.WaitFor(t, "the second change", func() bool { return isChanged("team/a", "h", before) })
	if isChanged("team", "a/h", before) {
		t.Error("a grant of an account whose name begins like the changed one counts as changed")
	}
	if isChanged("acme", "hub/1", time.Now().Add(time.Second)) {
		t.Error("a later grant counts as changed")
	}
	s.Add("", "hub-3") // recorded at the end of Run
	stop()
	<-ended
	if !isChanged("globex", "hub-3", before) {
		t.Error("the last change was not recorded")
	}
	if ttl := c.Commands().PTTL(t.Context(), s.key).Val(); ttl <= 0 || ttl > maxStoredAge {
		t.Errorf("the key expires in %s, want up to %s", ttl, maxStoredAge)
	}
}

// A change that is added while others are being recorded is recorded, even if Run ends.
func TestChangeStore_RecordsLastChange(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	s := NewChangeStore(c.Commands(), c.Keys(), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	c.Commands().AddHook(conntest.AfterScript(func() {
		s.Add("acme", "second")
		stop()
	}))
	s.Add("acme", "first")
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if n := c.Commands().ZCard(t.Context(), s.key).Val(); n != 2 {
		t.Errorf("got %d changes, want 2", n)
	}
}

// Old changes are removed. Too many become one for all credentials.
func TestChangeStore_BoundsChanges(t *testing.T) {
	t.Parallel()
	c := conntest.Open(t, redistest.Start(t), redisconn.Options{})
	s := NewChangeStore(c.Commands(), c.Keys(), slog.New(slog.DiscardHandler))
	count := func() int64 { return c.Commands().ZCard(t.Context(), s.key).Val() }
	s.pending[encodeMember("acme", "old")] = time.Now().Add(-2 * maxStoredAge)
	s.Add("acme", "new")
	if err := s.recordPending(); err != nil || count() != 1 {
		t.Errorf("got %d changes, %v, want the new one", count(), err)
	}
	before := time.Now()
	for part := range 110 { // in small parts, which a slow machine records in time
		for i := range maxStoredChanges / 100 {
			s.Add("acme", strconv.Itoa(part)+"-"+strconv.Itoa(i))
		}
		if err := s.recordPending(); err != nil {
			t.Fatal(err)
		}
		if count() > maxStoredChanges {
			t.Fatalf("got %d changes, want at most %d", count(), maxStoredChanges)
		}
	}
	v := NewVerifier(Options{Log: slog.New(slog.DiscardHandler)})
	if err := s.Load(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if !v.HasChanged(&auth.Grant{Account: "globex", Hub: "h", VerifiedAt: before}) {
		t.Error("an earlier grant of any account is valid")
	}
}
