package publicapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// newBudget returns quotas of burst requests per key and account that refill with one request per second.
func newBudget(t *testing.T, burst int64) *quota.Quotas {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: redistest.Start(t).Socket, MaxRetries: -1, DisableIdentity: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	limit := quota.Limit{PerSecond: quota.Amount{Count: 1}, Burst: time.Duration(burst) * time.Second}
	keys, err := keyspace.New("test", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	return quota.NewQuotas(quota.Options{
		Name: "requests", Key: limit, Account: limit, Store: quota.NewRedisStore(client, keys),
	})
}

// auditCounter counts the entries of the audit log by action.
type auditCounter struct {
	mu     sync.Mutex
	counts map[audit.Action]int
}

func (c *auditCounter) Record(e audit.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[audit.Action]int)
	}
	c.counts[e.Action]++
}

func (c *auditCounter) count(a audit.Action) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[a]
}

// repeatUntil429 sends GET requests until one is rejected, at most 50, and returns the status codes. A slow machine may
// refill the budget in between.
func (f *fixture) repeatUntil429(path string, headers ...string) (codes []int) {
	f.t.Helper()
	for len(codes) < 50 && (len(codes) == 0 || codes[len(codes)-1] != http.StatusTooManyRequests) {
		codes = append(codes, f.do("GET", path, "", headers...).status)
	}
	return codes
}

// A key that issues tokens without a pause is limited, and a key of another account is not.
func TestBudget_TokenFlood(t *testing.T) {
	t.Parallel()
	const burst = 20
	records := &auditCounter{}
	f := newFixture(t, func(o *Options) { o.Quotas, o.Audit = newBudget(t, burst), records }, nil)
	start := time.Now()
	issued, rejected := 0, 0
	for range 10 * burst {
		a := f.do("GET", pathNotifications, "", "Authorization", "Bearer ops")
		switch a.status {
		case http.StatusOK:
			issued++
		case http.StatusTooManyRequests:
			rejected++
			if code, _, extra := a.envelope(t); code != "429.rate-limiting" || extra["per"] == nil ||
				a.header.Get("Retry-After") == "" {
				t.Fatalf("got %s, %v, %v", code, extra, a.header)
			}
		default:
			t.Fatalf("got %d %s", a.status, a.body)
		}
	}
	if most := burst + int(time.Since(start).Seconds()) + 1; issued > most || issued < burst || rejected == 0 {
		t.Errorf("got %d tokens and %d rejected requests, want at most %d tokens", issued, rejected, most)
	}
	// The account of "one" is that of "ops".
	if codes := f.repeatUntil429(pathNotifications, "Authorization", "Bearer one", "X-Hub-Id", "h1"); codes[len(codes)-1] != 429 {
		t.Errorf("another key of the account: got %v, want 429", codes)
	}
	if a := f.do("GET", pathNotifications, "", "Authorization", "Bearer other"); a.status != 200 {
		t.Errorf("a key of another account: got %d %s, want 200", a.status, a.body)
	}
	if codes := f.repeatUntil429(pathNotifications, "Authorization", "Bearer ops", "Accept", "text/event-stream"); codes[len(codes)-1] !=
		429 {
		t.Errorf("an event stream with a key: got %v, want 429", codes)
	}
	if got := records.count(audit.ActionRequest); got != 2 { // one of each key
		t.Errorf("got %d audit entries, want 2", got)
	}
}

// Rejected requests count too.
func TestBudget_RejectedTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.Quotas = newBudget(t, 1) }, nil)
	codes := f.repeatUntil429(pathNotifications+"?topics=no.such", "Authorization", "Bearer ops")
	if codes[0] != 422 || codes[len(codes)-1] != 429 {
		t.Errorf("got %v, want 422 first and 429 at the end", codes)
	}
}

func TestBudget_ModuleRoutes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) {
		o.Quotas = newBudget(t, 1)
		o.Routes = new(fakeJobs).routes()
	}, nil)
	codes := f.repeatUntil429("/v1/jobs/1", "Authorization", "Bearer ops", "X-Hub-Id", "h1")
	if codes[0] != 200 || codes[len(codes)-1] != 429 {
		t.Errorf("got %v, want 200 first and 429 at the end", codes)
	}
}

// failingQuotas cannot count requests.
type failingQuotas struct{ err error }

func (f failingQuotas) Take(context.Context, quota.Client, quota.Amount) error { return f.err }

// failingTokens cannot store tokens.
type failingTokens struct {
	noTokens
	err error
}

func (f failingTokens) Issue(context.Context, auth.Grant, func(int64) error) (string, error) {
	return "", fmt.Errorf("%w: %w", auth.ErrUnavailable, f.err)
}

// A full Redis rejects the count of a request, or the token.
func TestToken_RedisUnavailable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"OOM command not allowed when used memory > 'maxmemory'.": `"code":"503.storage-full"`,
		"connection refused": `"code":"503.not-ready"`,
	} {
		for name, setOption := range map[string]func(*Options){
			"quotas": func(o *Options) { o.Quotas = failingQuotas{errors.New(text)} },
			"tokens": func(o *Options) { o.Tokens = failingTokens{err: errors.New(text)} },
		} {
			f := newFixture(t, setOption, nil)
			if a := f.do("GET", pathNotifications, "", "Authorization", "Bearer ops"); a.status != 503 ||
				!strings.Contains(string(a.body), want) {
				t.Errorf("%s: %s: got %d %s, want %s", name, text, a.status, a.body, want)
			}
		}
	}
}

// While the storage is full, no tokens are issued and no jobs are created, because they are stored too.
func TestBudget_StorageFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) {
		o.TakeRoom = func(owner string, bytes int64) error {
			if owner != "account acme" || bytes <= 0 {
				t.Errorf("got %d bytes of %q", bytes, owner)
			}
			return storage.NewFullError("the storage is full")
		}
		o.Routes = new(fakeJobs).routes()
	}, nil)
	tasks := "/v1/containers/c/instances/i/tasks"
	for _, a := range []response{
		f.do("GET", pathNotifications, "", "Authorization", "Bearer ops"),
		f.do("POST", tasks, "{}", "Authorization", "Bearer ops", "X-Hub-Id", "h1", "Content-Type", "application/json"),
	} {
		if code, _, _ := a.envelope(t); code != "503.storage-full" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	if a := f.do("GET", tasks, "", "Authorization", "Bearer ops", "X-Hub-Id", "h1"); a.status != http.StatusOK {
		t.Errorf("list of tasks: got %d %s, want 200", a.status, a.body)
	}
}

// The body of a request for a module has a lower limit than a body of events.
func TestModuleRoutes_LimitBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.Routes = new(fakeJobs).routes() }, nil)
	a := f.do("POST", "/v1/containers/c/instances/i/tasks", `{"a":"`+strings.Repeat("a", 1000)+`"}`, "Authorization", "Bearer ops",
		"X-Hub-Id", "h1", "Content-Type", "application/json")
	if code, _, _ := a.envelope(t); code != "413.too-large" {
		t.Errorf("got %d %s, want 413", a.status, a.body)
	}
}

// One token cannot open event streams in a loop, which would notify all nodes each time.
func TestBudget_ReopenedStreams(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	token := f.token()
	open := func(token string) response {
		return f.do("GET", pathNotifications+"?token="+token, "", "Accept", "text/event-stream")
	}
	for i := range reopenBurst {
		if a := open(token); a.status != 200 {
			t.Fatalf("stream %d: got %d %s", i, a.status, a.body)
		}
	}
	var err error
	for range reopenBurst {
		if a := open(token); a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") != "" {
			err = nil
			break
		}
		err = errors.New("never rejected")
	}
	if err != nil {
		t.Error(err)
	}
	if a := open(f.token()); a.status != 200 {
		t.Errorf("another token: got %d %s, want 200", a.status, a.body)
	}
}

// A rejected websocket leaves its token valid, so one token could make the relay parse patterns in a loop.
func TestBudget_RejectedWebsockets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	list := strings.TrimSuffix(strings.Repeat("*c*o*n*,", maxWildcards/4+1), ",")
	request := handshake(pathNotifications + "?topics=" + list + "&token=" + f.token())
	for range 2 * reopenBurst {
		a := f.raw(request)
		switch code, _, _ := a.envelope(t); code {
		case string(relay.CodeInvalidArgument):
			if !strings.Contains(string(a.body), "at most 256 are allowed") {
				t.Fatalf("got %s", a.body)
			}
		case string(relay.CodeRateLimiting):
			return
		default:
			t.Fatalf("got %s", a.body)
		}
	}
	t.Error("the websockets of a token have no limit")
}
