package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onBoth runs a test with three partitions on a real Redis, and with one on a Redis in this process.
func onBoth(t *testing.T, test func(*testing.T, *redisconn.Conn)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, conntest.Open(t, redistest.Start(t), redisconn.Options{Partitions: 3}))
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, conntest.OpenMemory(t))
	})
}

// appendEvents appends 60 events of three hubs, some in one millisecond, and returns their IDs.
func appendEvents(t *testing.T, l *eventlog.Log) (ids []string) {
	t.Helper()
	for i := range 20 {
		for hub := range 3 {
			n := relay.Notification{
				ID: fmt.Sprintf("6f9c2b1e8a3d4c0017e5%02x%02x", i, hub), Topic: []string{"job.created", "container.error"}[i%2],
				Hub: fmt.Sprint("h", hub), Account: "acme",
				Data: fmt.Appendf(nil, `{"topic":"x","object":{"id":"o-%d"},"context":{"hub_id":"h%d","containers":["c-%d"],"dns_zones":["z-%d"]}}`,
					i, hub, i%5, i%4),
			}
			r := eventlog.AppendRequest{
				Hub: n.Hub, Notifications: []relay.Notification{n},
				Publisher: eventlog.Publisher{Kind: eventlog.PublishedByKey, Name: fmt.Sprint("k", i%3)},
			}
			if _, err := l.Append(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// searchAll returns the IDs of all pages, the oldest first.
func searchAll(t *testing.T, s *Searcher, q Query) (ids []string) {
	t.Helper()
	last := time.Unix(1<<40, 0)
	for {
		r, err := s.Search(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Events) > q.Limit {
			t.Fatalf("got %d events, want at most %d", len(r.Events), q.Limit)
		}
		for _, e := range r.Events {
			if e.Time.After(last) {
				t.Errorf("event %s is later than the one before", e.ID)
			}
			last = e.Time
			ids = append(ids, e.ID)
		}
		if r.Next == "" {
			slices.Sort(ids)
			return ids
		}
		q.Before = r.Next
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		l := eventlog.New(c, c.Keys(), eventlog.Options{})
		s := NewSearcher(l, c.Keys())
		if r, err := s.Search(t.Context(), Query{Limit: 5}); err != nil || len(r.Events) != 0 || r.Next != "" {
			t.Errorf("an empty log: got %+v, %v", r, err)
		}
		all := appendEvents(t, l)
		topics, _ := relay.ParsePatterns([]string{"container.*"})
		for name, tt := range map[string]struct {
			q    Query
			want func(i, hub int) bool
		}{
			"all":            {Query{}, func(int, int) bool { return true }},
			"object":         {Query{Object: "o-7"}, func(i, _ int) bool { return i == 7 }},
			"part of object": {Query{Object: "o-"}, func(int, int) bool { return false }},
			"DNS zone":       {Query{DNSZone: "z-2"}, func(i, _ int) bool { return i%4 == 2 }},
			"container":      {Query{Filter: relay.Filter{Containers: []string{"c-3"}}}, func(i, _ int) bool { return i%5 == 3 }},
			"hub":            {Query{Filter: relay.Filter{Hubs: []string{"h1"}}}, func(_, hub int) bool { return hub == 1 }},
			"topic":          {Query{Filter: relay.Filter{Topics: topics}}, func(i, _ int) bool { return i%2 == 1 }},
			"name":           {Query{Publisher: "k2"}, func(i, _ int) bool { return i%3 == 2 }},
			"publisher":      {Query{Publisher: "key k1"}, func(i, _ int) bool { return i%3 == 1 }},
			"kind":           {Query{Publisher: "key"}, func(int, int) bool { return false }},
			"later":          {Query{Since: time.Now().Add(time.Hour)}, func(int, int) bool { return false }},
			"earlier":        {Query{Until: time.Now().Add(-time.Hour)}, func(int, int) bool { return false }},
			"today": {
				Query{Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, func(int, int) bool { return true },
			},
		} {
			var want []string
			for i, id := range all {
				if tt.want(i/3, i%3) {
					want = append(want, id)
				}
			}
			for _, tt.q.Limit = range []int{1, 7, 60, 1000} {
				if got := searchAll(t, s, tt.q); !slices.Equal(got, want) {
					t.Errorf("%s, %d per page: got %v, want %v", name, tt.q.Limit, got, want)
				}
			}
		}
		newest, err := s.Search(t.Context(), Query{Limit: 1, Object: "o-19", Filter: relay.Filter{Hubs: []string{"h2"}}})
		if err != nil || len(newest.Events) != 1 || newest.Events[0].ObjectID != "o-19" ||
			newest.Events[0].Publisher.String() != "key k1" || newest.SearchedTo.IsZero() {
			t.Errorf("got %+v, %v", newest, err)
		}
		for _, cursor := range []string{"x", "1-1", "1-1.x", "1-1.-1", ".1"} {
			if _, err := s.Search(t.Context(), Query{Before: cursor, Limit: 1}); !errors.Is(err, ErrInvalidCursor) {
				t.Errorf("cursor %q: got %v", cursor, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Search(ctx, Query{Limit: 1}); err == nil {
			t.Error("a canceled search returned no error")
		}
	})
}
