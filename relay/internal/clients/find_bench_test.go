package clients

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// joinSilent adds a client to the index that accepts nothing, so a broadcast costs only the search.
func joinSilent(tb testing.TB, h *Server, s *Subscription, topics ...string) *connection {
	tb.Helper()
	var err error
	if s.Topics, err = relay.ParsePatterns(topics); err != nil {
		tb.Fatal(err)
	}
	if s.Allows == nil {
		s.Allows = func(string, string) bool { return true }
	}
	c := &connection{server: h, feed: h.feedFor(s), allows: s.Allows, state: stateDead, fd: -1}
	h.index.Add(c, s)
	return c
}

// otherTopics returns one of more than 4,000 different topic lists. None contains the topic of benchEvent.
func otherTopics(i int) []string {
	var names []string
	for _, t := range relay.Topics() {
		if t.Name != benchEvent().Topic {
			names = append(names, t.Name)
		}
	}
	for first := range names {
		if rest := len(names) - first - 1; i >= rest {
			i -= rest
			continue
		}
		return []string{names[first], names[first+1+i]}
	}
	return nil
}

// BenchmarkFind measures the cost of a notification without writes: for one matching client, alone and among others,
// and for the 500 of a hub.
func BenchmarkFind(b *testing.B) {
	one := func(b *testing.B, h *Server) {
		joinSilent(b, h, &Subscription{Hub: "h", Account: "*", VisibilityKey: "all"})
	}
	for _, bb := range []struct {
		name   string
		others func(*testing.B, *Server)
	}{
		{"alone", func(*testing.B, *Server) {}},
		{"1000-filters", func(b *testing.B, h *Server) {
			for i := range 1000 {
				joinSilent(b, h, &Subscription{Hub: "h", Account: "*", VisibilityKey: "all"}, otherTopics(i)...)
			}
		}},
		{"10000-accounts", func(b *testing.B, h *Server) {
			for i := range 10_000 {
				hub, account := "h"+strconv.Itoa(i), "a"+strconv.Itoa(i)
				joinSilent(b, h, &Subscription{
					Account: account, Hubs: []string{hub}, VisibilityKey: "hubs " + hub + " of " + account,
				})
			}
		}},
		{"10000-accounts-of-all-hubs", func(b *testing.B, h *Server) {
			for i := range 10_000 {
				account := "a" + strconv.Itoa(i)
				joinSilent(b, h, &Subscription{
					Account: account, Hubs: []string{"*"}, VisibilityKey: "hubs * of " + account,
				}, otherTopics(i%4000)...)
			}
		}},
		{"1000-sights-of-an-account", func(b *testing.B, h *Server) {
			for i := range 1000 {
				hub := "h" + strconv.Itoa(i)
				joinSilent(b, h, &Subscription{
					Account: "a", Hubs: []string{hub}, VisibilityKey: "hubs " + hub + " of a",
				})
			}
		}},
		{"499-like-it", func(b *testing.B, h *Server) {
			for range 499 {
				one(b, h)
			}
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			h := New(Options{})
			one(b, h)
			bb.others(b, h)
			n := benchEvent()
			n.Account = ""
			if bb.name == "1000-sights-of-an-account" {
				n.Account = "a"
			}
			list := []relay.Notification{n}
			h.Broadcast(Batch{Notifications: list})
			for b.Loop() {
				h.Broadcast(Batch{Notifications: list})
			}
		})
	}
}

// BenchmarkComeAndGo measures adding and removing a client with different topics among many clients.
func BenchmarkComeAndGo(b *testing.B) {
	h := New(Options{})
	for i := range 1000 {
		joinSilent(b, h, &Subscription{Hub: "h", Account: "*", VisibilityKey: "all"}, otherTopics(i)...)
	}
	for _, t := range relay.Topics() {
		h.Broadcast(Batch{Notifications: []relay.Notification{event("h", "a", t.Name, 0)}})
	}
	topics, err := relay.ParsePatterns(otherTopics(2000))
	if err != nil {
		b.Fatal(err)
	}
	s := Subscription{
		Hub:           "h",
		Account:       "*",
		VisibilityKey: "all",
		Topics:        topics,
		Allows:        func(string, string) bool { return true },
	}
	c := &connection{server: h, feed: h.feedFor(&s), allows: s.Allows, state: stateDead, fd: -1}
	for b.Loop() {
		h.index.Add(c, &s)
		h.index.Remove(c)
	}
}

// BenchmarkNewTopic measures the first notification of a topic, which is matched with all patterns.
func BenchmarkNewTopic(b *testing.B) {
	h := New(Options{})
	for i := range 1000 {
		joinSilent(b, h, &Subscription{Hub: "h", Account: "*", VisibilityKey: "all"}, otherTopics(i)...)
	}
	for i := 0; b.Loop(); i++ {
		h.Broadcast(Batch{Notifications: []relay.Notification{event("h", "a", fmt.Sprint("topic.", i), 0)}})
	}
}
