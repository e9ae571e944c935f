package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/inbox"
	"github.com/hubrelay/hubrelay/relay/internal/lease"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

// testStores are the stores that the tests need.
type testStores struct {
	*redisconn.Conn
	log    *eventlog.Log
	inbox  *inbox.Store
	leases *lease.Manager
}

func newTestStores(c *redisconn.Conn) *testStores {
	keys := c.Keys()
	return &testStores{c, eventlog.New(c, keys, eventlog.Options{}), inbox.NewStore(c, keys), lease.NewManager(c, keys)}
}

// openStores connects to s until the test ends.
func openStores(t testing.TB, s *redistest.Server, partitions int) *testStores {
	t.Helper()
	return newTestStores(conntest.Open(t, s, redisconn.Options{Partitions: partitions}))
}

// logOf returns what all partitions hold, one behind the other.
func logOf(t testing.TB, b *testStores) []relay.Notification {
	t.Helper()
	var all []relay.Notification
	for p := range b.Keys().Partitions() {
		ns, err := b.log.Range(t.Context(), p, "", 1_000_000)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ns...)
	}
	return all
}

func publication(key, body string) Publication {
	return Publication{
		KeyName: "ops", Owner: "account a", Hub: "h", Account: "a", ContentType: "application/x-ndjson", IdempotencyKey: key,
		Body: []byte(body),
	}
}

func TestPublish_StoresAllOrNothing(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 1)
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: b.log})
	ids, err := pub.Publish(t.Context(), publication("", item(0)+"\n"+item(1)))
	if err != nil {
		t.Fatal(err)
	}
	stored := logOf(t, b)
	if len(ids) != 2 || len(stored) != 2 || stored[0].ID != ids[0] || stored[1].ID != ids[1] {
		t.Fatalf("ids %v, stored %v", ids, stored)
	}
	want := normal(`"id":"0","state":"","error":""`, `"hub_id":"h","account_id":"a",`+emptyLists, "")
	if n := stored[0]; string(n.Data) != want || n.Topic != "job.created" || n.Hub != "h" || n.Account != "a" {
		t.Errorf("stored %+v", n)
	}
	if _, err := pub.Publish(t.Context(), publication("", item(0)+"\n{}")); err == nil {
		t.Error("a part of a batch was accepted")
	}
	if n := len(logOf(t, b)); n != 2 {
		t.Errorf("%d are stored after a bad batch", n)
	}
}

// countedRoom has room for everything, and counts what was taken and not returned.
type countedRoom struct{ bytes int64 }

func (r *countedRoom) CheckPublisher(string) error { return nil }

func (r *countedRoom) TakeRoom(_ string, bytes int64) error {
	r.bytes += bytes
	return nil
}

func (r *countedRoom) ReturnRoom(_ string, bytes int64) { r.bytes -= bytes }

func TestPublish_RepeatWithSameKey(t *testing.T) {
	t.Parallel()
	b := openStores(t, redistest.Start(t), 1)
	room := &countedRoom{}
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: b.log, Room: room})
	first, err := pub.Publish(t.Context(), publication("k", item(0)+"\n"+item(1)))
	if err != nil {
		t.Fatal(err)
	}
	taken := room.bytes
	again := publication("k", item(0)+"\n"+item(1))
	again.ContentType += "; charset=utf-8"
	second, err := pub.Publish(t.Context(), again)
	if err != nil || fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("the repeat got %v, %v, want %v", second, err, first)
	}
	other := publication("k", item(0))
	_, err = pub.Publish(t.Context(), other)
	var refused *relay.Error
	if !errors.As(err, &refused) || refused.Code != relay.CodeInvalidArgument || refused.Source != "" {
		t.Errorf("other content: got %v", err)
	}
	if taken <= 0 || room.bytes != taken {
		t.Errorf("requests that store nothing took room: got %d bytes, want %d", room.bytes, taken)
	}
	other.KeyName = "another key"
	if _, err := pub.Publish(t.Context(), other); err != nil {
		t.Errorf("same key of another API key: got %v", err)
	}
	other.KeyName, other.Hub = "ops", "another hub"
	if _, err := pub.Publish(t.Context(), other); err != nil {
		t.Errorf("same key in another hub: got %v", err)
	}
	other.Hub, other.Account, other.Owner = "h", "b", "account b"
	if _, err := pub.Publish(t.Context(), other); err != nil {
		t.Errorf("same key of an external API key with this name in another account: got %v", err)
	}
	if n := len(logOf(t, b)); n != 5 {
		t.Errorf("%d are stored, want 5", n)
	}
}

func TestPublish_RedisUnreachable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := openStores(t, s, 1)
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: b.log})
	s.Kill()
	for key, want := range map[string]string{"": "Send an Idempotency-Key", "k": "same Idempotency-Key"} {
		_, err := pub.Publish(t.Context(), publication(key, item(0)))
		var refused *relay.Error
		if !errors.As(err, &refused) || refused.Code != relay.CodeNotReady || !strings.Contains(refused.Detail, want) {
			t.Errorf("key %q: got %v", key, err)
		}
		if !errors.Is(err, redisconn.ErrUnavailable) {
			t.Errorf("key %q: the cause is lost: %v", key, err)
		}
	}
	s.Restart()
	if _, err := pub.Publish(t.Context(), publication("k", item(0))); err != nil {
		t.Error(err)
	}
	if n := len(logOf(t, b)); n != 1 {
		t.Errorf("%d are stored, want 1", n)
	}
}

func TestPublish_RejectsInvalidRequests(t *testing.T) {
	t.Parallel()
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: brokenLog{}})
	for name, tc := range map[string]struct {
		change func(*Publication)
		want   relay.Code
	}{
		"no hub": {func(p *Publication) { p.Hub = "" }, relay.CodeMissingArgument},
		"long key": {
			func(p *Publication) { p.IdempotencyKey = strings.Repeat("k", 256) }, relay.CodeInvalidArgument,
		},
		"key with space": {func(p *Publication) { p.IdempotencyKey = "a b" }, relay.CodeInvalidArgument},
		"key with umlaut": {
			func(p *Publication) { p.IdempotencyKey = "ä" }, relay.CodeInvalidArgument,
		},
		"content type": {func(p *Publication) { p.ContentType = "text/plain" }, relay.CodeInvalidContentType},
		"body":         {func(p *Publication) { p.Body = []byte("{") }, relay.CodeInvalidSyntax},
	} {
		p := publication(strings.Repeat("k", 255), item(0))
		tc.change(&p)
		_, err := pub.Publish(t.Context(), p)
		var refused *relay.Error
		if !errors.As(err, &refused) || refused.Code != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	_, err := pub.Publish(t.Context(), publication("", item(0)))
	var refused *relay.Error
	if !errors.Is(err, errBroken) || errors.As(err, &refused) {
		t.Errorf("an internal error was reported as an error of the sender: %v", err)
	}
}

type brokenQuotas struct{ err error }

func (q brokenQuotas) Take(context.Context, quota.Client, quota.Amount) error { return q.err }

// The response names the cause if a quota cannot be checked, because Redis is full or does not respond.
func TestPublish_QuotaUnavailable(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]relay.Code{
		"OOM command not allowed when used memory > 'maxmemory'.": relay.CodeStorageFull,
		"LOADING Redis is loading the dataset in memory":          relay.CodeNotReady,
	} {
		err := redisconn.WrapError("lease quota", fmt.Errorf("%w: %s", redisconn.ErrUnavailable, reply))
		pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: brokenLog{}, Quotas: brokenQuotas{err}})
		_, err = pub.Publish(t.Context(), publication("", item(0)))
		var rejected *relay.Error
		if !errors.As(err, &rejected) || rejected.Code != want {
			t.Errorf("%s: got %v, want %s", reply, err, want)
		}
	}
}

// While a reader of the log lags, only loud publishers are rejected.
func TestPublish_LaggingReaders(t *testing.T) {
	t.Parallel()
	store := openStores(t, redistest.Start(t), 1)
	for name, tt := range map[string]struct {
		sent   int
		lag    time.Duration
		others bool
		want   relay.Code
	}{
		"lags, loud":     {2 * loudBytes, maxLag, true, relay.CodeRateLimiting},
		"lags, quiet":    {0, time.Hour, true, ""},
		"lags not long":  {2 * loudBytes, maxLag - 1, true, ""},
		"lags, no other": {2 * loudBytes, maxLag, false, ""},
	} {
		pub := NewPublisher(PublisherOptions{
			Decoder: newDecoder(t), Log: store.log,
			IsLagging:     func(span time.Duration) bool { return tt.lag >= span },
			HasReadOthers: func(account string, _ time.Duration) bool { return tt.others && account == "a" },
		})
		p := publication("", item(0))
		p.Account, p.AnyAccount = "a", false
		pub.loudness.countRequest(p.Owner, tt.sent, false)
		_, err := pub.Publish(t.Context(), p)
		var rejected *relay.Error
		code := relay.Code("")
		if errors.As(err, &rejected) {
			code = rejected.Code
		}
		if code != tt.want || err != nil && code == "" {
			t.Errorf("%s: got error %v, want code %q", name, err, tt.want)
		}
	}
}

var errBroken = errors.New("broken")

type brokenLog struct{}

func (brokenLog) Append(context.Context, eventlog.AppendRequest) ([]string, error) {
	return nil, errBroken
}

func BenchmarkPublish(b *testing.B) {
	store := openStores(b, redistest.Start(b, "--appendfsync", "everysec"), 1)
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(b), Log: store.log})
	p := Publication{
		KeyName: "ops", Hub: typicalHub, AnyAccount: true, ContentType: "application/x-ndjson",
		Body: []byte(strings.Repeat(typical+"\n", 100)),
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := pub.Publish(b.Context(), p); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)*100/b.Elapsed().Seconds(), "notifications/s")
}

// shortLog reports too few replicas.
type shortLog struct{}

func (shortLog) Append(context.Context, eventlog.AppendRequest) ([]string, error) {
	return nil, errors.Join(redisconn.ErrUnavailable, redisconn.ErrTooFewReplicas)
}

func TestPublish_TooFewReplicas(t *testing.T) {
	t.Parallel()
	pub := NewPublisher(PublisherOptions{Decoder: newDecoder(t), Log: shortLog{}})
	for key, want := range map[string]string{"": "Send an Idempotency-Key", "k": "same Idempotency-Key"} {
		_, err := pub.Publish(t.Context(), publication(key, item(0)))
		var refused *relay.Error
		if !errors.As(err, &refused) || refused.Code != relay.CodeNotReady || !strings.Contains(refused.Detail, want) ||
			!strings.Contains(refused.Detail, "everything was stored, but on fewer replicas") {
			t.Errorf("key %q: got %v", key, err)
		}
	}
}
