package redisconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url, addrs, user, password, master string
		db                                 int
		tls, cluster                       bool
	}{
		{url: "redis://h:1", addrs: "[h:1]"},
		{url: "redis://", addrs: "[localhost:6379]"},
		{url: "redis://:p%40ss@h/3", addrs: "[h:6379]", password: "p@ss", db: 3},
		{url: "redis://u:p@[::1]:7/1", addrs: "[[::1]:7]", user: "u", password: "p", db: 1},
		{url: "rediss://h", addrs: "[h:6379]", tls: true},
		{url: "unix:///run/redis.sock?db=2", addrs: "[/run/redis.sock]", db: 2},
		{url: "redis+sentinel://:p@a:1,b:2/main/4", addrs: "[a:1 b:2]", password: "p", master: "main", db: 4},
		{url: "redis+cluster://a:1,b:2?tls=true", addrs: "[a:1 b:2]", cluster: true, tls: true},
	} {
		o, err := parseAddress(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if fmt.Sprint(o.Addrs) != c.addrs || o.Username != c.user || o.Password != c.password ||
			o.MasterName != c.master || o.DB != c.db || (o.TLSConfig != nil) != c.tls || o.IsClusterMode != c.cluster {
			t.Errorf("%s: got %+v", c.url, o)
		}
	}
}

func TestParseAddress_RejectsInvalid(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "h:6379", "http://secret@h", "redis://:sec%zzret@h", "redis://h/secret", "redis://h/-1",
		"redis://a:1,b:2", "unix://secret", "redis+sentinel://secret@h", "redis+cluster://h/1",
		"redis://h?pool_size=secret", "redis://user:12/secret@h:6379/0",
	} {
		_, err := parseAddress(url)
		if err == nil {
			t.Errorf("parseAddress(%q): got no error", url)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("parseAddress(%q): the error may contain a password: %v", url, err)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{
		"redis://u:p@h:1/2", "unix:///a?db=1", "redis+sentinel://a:1,b/m/0", "redis+cluster://a:1,b:2?tls=true",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if o, err := parseAddress(s); err == nil && len(o.Addrs) == 0 {
			t.Errorf("parseAddress(%q): got no address and no error", s)
		}
	})
}

func TestOpen_RejectsOtherPartitions(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	open(t, s, Options{Partitions: 4})
	open(t, s, Options{Partitions: 4})
	_, err := Open(t.Context(), Options{URL: s.URL(), Partitions: 2})
	if err == nil || !strings.Contains(err.Error(), "set redis.partitions to 4") {
		t.Errorf("got %v, want an error about partitions", err)
	}
	open(t, s, Options{Partitions: 2, Prefix: "other"})
}

func TestOpen_WaitsForRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, Options{URL: s.URL()}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without Redis: got %v, want ErrUnavailable", err)
	}
	opened := make(chan error, 1)
	go func() {
		b, err := Open(context.WithoutCancel(t.Context()), Options{URL: s.URL()})
		if err == nil {
			b.Close()
		}
		opened <- err
	}()
	s.Restart()
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// Open logs what it waits for at once, and then every ten seconds.
func TestOpen_LogsWaiting(t *testing.T) {
	t.Parallel()
	for singleProcess, want := range map[bool]string{
		false: "waiting for redis at redis.url",
		true:  `msg="waiting for redis" `,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			defer cancel()
			var logged bytes.Buffer
			refused := func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
			log := slog.New(slog.NewTextHandler(&logged, nil))
			_, err := Open(ctx, Options{Dialer: refused, SingleProcess: singleProcess, Log: log})
			text := logged.String()
			if !errors.Is(err, ErrUnavailable) || strings.Count(text, "\n") != 3 || strings.Count(text, want) != 3 {
				t.Errorf("got %v, want ErrUnavailable and three times %q in the log:\n%s", err, want, text)
			}
		})
	}
}

// fakeRedis replies only to INFO.
func fakeRedis(t *testing.T, info string) func(context.Context, string, string) (net.Conn, error) {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		wg.Go(func() {
			defer func() { _ = server.Close() }()
			buf := make([]byte, 4096)
			for {
				n, err := server.Read(buf)
				if err != nil {
					return
				}
				reply := "-ERR unknown command\r\n"
				if bytes.Contains(bytes.ToLower(buf[:n]), []byte("\r\ninfo\r\n")) {
					reply = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
				}
				_, _ = server.Write([]byte(reply))
			}
		})
		return client, nil
	}
}

func TestOpen_RejectsOldRedis(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Options{Dialer: fakeRedis(t, "# Server\r\nredis_version:6.0.16\r\n")})
	if err == nil || !strings.Contains(err.Error(), "6.0.16 but 6.2 or later is required") {
		t.Errorf("got %v, want an error about the version", err)
	}
}

func TestOpen_HidesPassword(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if err := open(t, s, Options{}).Commands().ConfigSet(t.Context(), "requirepass", "right-secret").Err(); err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	url := strings.Replace(s.URL(), "unix://", "unix://:wrong-secret@", 1)
	_, err := Open(t.Context(), Options{URL: url, Log: slog.New(slog.NewTextHandler(&logged, nil))})
	if err == nil || errors.Is(err, ErrUnavailable) {
		t.Fatalf("wrong password: got %v, want a permanent error", err)
	}
	s.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err2 := Open(ctx, Options{URL: url, Log: slog.New(slog.NewTextHandler(&logged, nil))})
	if all := err.Error() + err2.Error() + logged.String(); strings.Contains(all, "secret") {
		t.Errorf("a password is visible: %s", all)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := open(t, s, Options{})
	for range 40 {
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	if err := b.Ready(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without Redis: got %v, want ErrUnavailable", err)
	}
	s.Restart()
	testkit.WaitFor(t, "Redis to be ready", func() bool { return b.Ready(t.Context()) == nil })
	if err := b.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("out of memory: got %v, want ErrUnavailable", err)
	}
}

// A node starts in a full Redis, because deliveries free memory.
func TestOpen_FullRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := open(t, s, Options{})
	identity, err := c.Identity(t.Context())
	if err := errors.Join(err, c.Commands().ConfigSet(t.Context(), "maxmemory", "1").Err()); err != nil {
		t.Fatal(err)
	}
	if again, err := open(t, s, Options{}).Identity(t.Context()); err != nil || again != identity {
		t.Errorf("got identity %v, %v, want %v", again, err, identity)
	}
}

func TestIdentity_IsStablePerPrefix(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	identity, err := open(t, s, Options{}).Identity(t.Context())
	if err != nil || len(identity.RelayID) != 16 {
		t.Fatalf("got relay ID %q, %v, want 16 digits", identity.RelayID, err)
	}
	if again, err := open(t, s, Options{}).Identity(t.Context()); err != nil || again != identity {
		t.Errorf("second connection: got %v, %v, want %v", again, err, identity)
	}
	other, err := open(t, s, Options{Prefix: "other"}).Identity(t.Context())
	if err != nil || other.RelayID == identity.RelayID || other.CursorKey == identity.CursorKey {
		t.Errorf("other prefix: got %v, %v, want another identity", other, err)
	}
}

// After Redis has lost its data, nodes that start later have the same identity.
func TestKeepIdentity(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := open(t, s, Options{})
	identity, err := c.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var log testkit.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.KeepIdentity(ctx, identity, slog.New(slog.NewTextHandler(&log, nil))) }()
	if err := c.Commands().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the identity to be stored again", func() bool {
		return c.Commands().Exists(t.Context(), RelayIDKey(c.keys), CursorKeyKey(c.keys)).Val() == 2
	})
	if again, err := open(t, s, Options{}).Identity(t.Context()); err != nil || again != identity {
		t.Errorf("got %v, %v, want %v", again, err, identity)
	}
	if log.String() != "" {
		t.Errorf("got log %s", log.String())
	}
	if err := c.Commands().Set(t.Context(), RelayIDKey(c.keys), "of another node", 0).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "a warning", func() bool { return strings.Contains(log.String(), "restart this node") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// replyError is an error that Redis replied.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestWrapError_SlotMoves(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"ASK 5649 127.0.0.1:22003", "TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR Error running script: ASK 5649 127.0.0.1:22003",
	} {
		err := WrapError("list the sinks", replyError(reply))
		if !errors.Is(err, ErrSlotMoves) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%q: got %v, want ErrSlotMoves and ErrUnavailable", reply, err)
		}
	}
	if err := WrapError("list the sinks", replyError("LOADING")); errors.Is(err, ErrSlotMoves) {
		t.Errorf("got %v, want another error than ErrSlotMoves", err)
	}
}
