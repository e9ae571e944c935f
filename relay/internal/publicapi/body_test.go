package publicapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

// unfinishedBody starts a publish request whose body never ends, and returns its connection.
func unfinishedBody(t *testing.T, f *fixture, key string, announced, sent int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nX-Hub-Id: h1\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", pathNotifications, key, announced,
		make([]byte, sent))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// Unfinished bodies stay within the budget. The keys of an account share its part,
// and a key of another account can always publish.
func TestBody_Budget(t *testing.T) {
	t.Parallel()
	const (
		budget = 4 << 20
		size   = 1 << 20
	)
	f := newFixture(t, func(o *Options) { o.MaxBodyMemory, o.MinBodyRate = budget, 1 }, nil) // half of firstRead lasts for minutes
	f.api.bodyWait = 50 * time.Millisecond
	f.api.bodyWindow = time.Hour
	used := func(owner string) int64 {
		f.api.budget.mu.Lock()
		defer f.api.budget.mu.Unlock()
		return f.api.budget.byOwner[owner]
	}
	// The first bodies take half of the free budget, so none of them waits for another one.
	take := func(key, owner string, bodies, sent int, want int64) {
		t.Helper()
		for range bodies {
			unfinishedBody(t, f, key, size, sent)
		}
		testkit.WaitForValue(t, "bytes of "+owner, want, func() int64 { return used(owner) })
		for range 50 {
			unfinishedBody(t, f, key, size, sent)
		}
	}
	take("platform", "key platform", budget/2/minUnfinishedCharge, firstRead/2, budget/2)
	take("ops", "account acme", 1, size-1, budget/4)
	publish := func(key string) response {
		return f.do("POST", pathNotifications, "{}", "Authorization", "Bearer "+key, "X-Hub-Id", "h1", "Content-Type",
			"application/json")
	}
	for _, key := range []string{"ops", "one"} { // of the same account
		a := publish(key)
		if a.status != http.StatusServiceUnavailable {
			t.Fatalf("got %d for %s, want 503", a.status, key)
		}
		if code, _, _ := a.envelope(t); code != "503.not-ready" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %s with headers %v", a.body, a.header)
		}
	}
	for owner, want := range map[string]int64{"key platform": budget / 2, "account acme": budget / 4} {
		if n := used(owner); n != want {
			t.Errorf("got %d bytes of %s in use, want %d", n, owner, want)
		}
	}
	if a := publish("elsewhere"); a.status != http.StatusAccepted {
		t.Errorf("a key of another account: got %d %s, want 202", a.status, a.body)
	}
}

// An account occupies only a part of the connections with bodies that do not arrive, and does not wait for more.
func TestBody_LimitsUnfinished(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.MaxBodies = 10 }, nil)
	for range 20 {
		unfinishedBody(t, f, "ops", 1000, 0)
	}
	publish := func(key string) int {
		return f.do("POST", pathNotifications, "{}", "Authorization", "Bearer "+key, "X-Hub-Id", "h1", "Content-Type",
			"application/json").status
	}
	testkit.Eventually(t, "rejected requests", func() error {
		for _, key := range []string{"ops", "one"} { // of the same account
			if status := publish(key); status != http.StatusServiceUnavailable {
				return fmt.Errorf("got %d", status)
			}
		}
		return nil
	})
	if status := publish("elsewhere"); status != http.StatusAccepted {
		t.Errorf("a key of another account: got %d, want 202", status)
	}
	f.api.countBudget.mu.Lock()
	defer f.api.countBudget.mu.Unlock()
	if n := f.api.countBudget.byOwner["account acme"]; n != 5 {
		t.Errorf("got %d bodies of an account, want 5", n)
	}
}

// A request whose body no handler reads makes room for others while the body does not arrive.
func TestBody_UnreadMakesRoom(t *testing.T) {
	t.Parallel()
	for _, header := range []string{
		"OPTIONS " + pathNotifications + " HTTP/1.1\r\n", "HEAD " + pathNotifications + " HTTP/1.1\r\nAuthorization: Bearer ops\r\n",
		"GET " + pathNotifications + " HTTP/1.1\r\nAuthorization: Bearer ops\r\n", "DELETE " + pathToken + " HTTP/1.1\r\n",
	} {
		f := newFixture(t, nil, func(o *httpserver.Options) {
			o.ConnLimits, o.ReadTimeout, o.WriteTimeout = httpserver.ConnLimits{Total: 1}, time.Hour, time.Hour
		})
		f.api.drainTime = time.Hour
		conn, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "%sHost: a\r\nX-Hub-Id: h1\r\nContent-Length: 1\r\n\r\n", header); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, header+" to make room", func() error {
			r, err := f.client.Get("http://" + f.addr + pathOpenAPI)
			if err != nil {
				return err
			}
			return r.Body.Close()
		})
	}
}

// A body that arrives too slowly is rejected.
func TestBody_MinRate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.MinBodyRate = 1 << 30 }, nil)
	f.api.bodyWindow, f.api.drainTime = 50*time.Millisecond, time.Millisecond
	conn := unfinishedBody(t, f, "ops", 1<<20, 10)
	reader := bufio.NewReader(conn)
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	res, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("got %d %s, want 400", res.StatusCode, text)
	}
}

func TestBodyBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBodyBudget(100)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
		defer cancel()
		take := func(key string, held, more int64) error { return b.acquirePart(ctx, key, held, more) }
		if err := errors.Join(take("large", 0, 200), take("large", 200, 100)); err != nil {
			t.Errorf("a request that is alone: %v", err)
		}
		b.releasePart("large", 300)
		if err := errors.Join(take("a", 0, 30), take("a", 0, 20)); err != nil {
			t.Errorf("within half of the budget: %v", err)
		}
		done := make(chan error)
		go func() { done <- take("a", 20, 10) }()
		synctest.Wait()
		if err := errors.Join(take("b", 0, 25), take("c", 0, 12)); err != nil {
			t.Errorf("half of what is free: %v", err)
		}
		b.releasePart("b", 25)
		b.releasePart("c", 12)
		b.releasePart("a", 30)
		if err := <-done; err != nil {
			t.Errorf("after a release: %v", err)
		}
		if err := take("a", 0, 40); err == nil || err.Error() != "enough" {
			t.Errorf("got %v, want the end of the context", err)
		}
		b.releasePart("a", 30)
		if b.used != 0 || len(b.byOwner) != 0 || b.waiting != 0 {
			t.Errorf("got %d used of %v, %d waiting, want nothing", b.used, b.byOwner, b.waiting)
		}
	})
}

// blockedPublisher blocks in Publish until proceed is closed.
type blockedPublisher struct{ entered, proceed chan struct{} }

func (p blockedPublisher) Publish(context.Context, ingest.Publication) ([]string, error) {
	p.entered <- struct{}{}
	<-p.proceed
	return nil, nil
}

// The budget contains the notifications of a body, which can take far more memory than the body.
func TestBody_BudgetContainsNotifications(t *testing.T) {
	t.Parallel()
	publisher := blockedPublisher{make(chan struct{}, 3), make(chan struct{})}
	f := newFixture(t, func(o *Options) { o.MaxBodyMemory, o.Publisher = 2<<20, publisher }, nil)
	f.api.bodyWait = 50 * time.Millisecond
	body := strings.Repeat(`{"topic":"hub.updated"}`+"\n", 1000)
	publish := func(key string) int {
		return f.do("POST", pathNotifications, body, "Authorization", "Bearer "+key, "X-Hub-Id", "h1", "Content-Type",
			"application/x-ndjson").status
	}
	var wg sync.WaitGroup
	for _, key := range []string{"ops", "elsewhere"} {
		wg.Go(func() {
			if status := publish(key); status != http.StatusAccepted {
				t.Errorf("first request of %s: got %d, want 202", key, status)
			}
		})
	}
	<-publisher.entered
	<-publisher.entered
	if status := publish("ops"); status != http.StatusServiceUnavailable {
		t.Errorf("request beyond half of the budget: got %d, want 503", status)
	}
	close(publisher.proceed)
	wg.Wait()
}

func TestBodyWindow(t *testing.T) {
	t.Parallel()
	w := bodyWindow{length: 10 * time.Second, bytes: 100}
	start := time.Now()
	for _, tt := range []struct {
		seconds, bytes, end int
	}{
		{0, 1, 10},
		{9, 100, 10}, // one byte too few
		{9, 101, 19},
		{10, 1000, 20}, // what arrives early extends only one window
		{19, 1001, 20},
	} {
		now := start.Add(time.Duration(tt.seconds) * time.Second)
		if got := w.next(now, tt.bytes).Sub(start); got != time.Duration(tt.end)*time.Second {
			t.Errorf("after %d s and %d bytes: the window ends at %s, want %d s", tt.seconds, tt.bytes, got, tt.end)
		}
	}
}
