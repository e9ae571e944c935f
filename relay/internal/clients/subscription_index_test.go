package clients

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// size returns the number of entries in the index.
func (si *subscriptionIndex) size() int {
	si.mu.Lock()
	defer si.mu.Unlock()
	return len(si.groups) + len(si.buckets) + len(si.filters)
}

// members are the clients of a hub's stream.
func (si *subscriptionIndex) members(hub string) (list []*connection) {
	si.mu.Lock()
	defer si.mu.Unlock()
	for _, g := range si.groups {
		if g.hub == hub {
			list = append(list, g.members...)
		}
	}
	return list
}

// touched are the groups that a notification visits, once each.
func (si *subscriptionIndex) touched(n relay.Notification) (list []*group) {
	si.mu.Lock()
	defer si.mu.Unlock()
	si.Match(&n, allFeeds, func(g *group) {
		if !slices.Contains(list, g) {
			list = append(list, g)
		}
	})
	return list
}

// openedBy are the rules of a grant: an account stream, or a hub's, of a key with an account and hubs.
func openedBy(hub, account string, hubs []string) Subscription {
	s := Subscription{
		Hub:           hub,
		Account:       account,
		Hubs:          hubs,
		VisibilityKey: fmt.Sprintf("hubs %q of %s", hubs, account),
	}
	s.Allows = func(h, a string) bool {
		return (hub == "" || hub == h) && (a == "" || account == a || account == anyAccount) &&
			(slices.Contains(hubs, h) || slices.Contains(hubs, anyHub))
	}
	return s
}

// With random subscriptions that come and go, a notification visits exactly the groups that may see it and match its
// topic.
func TestIndex_MatchesExactGroups(t *testing.T) {
	t.Parallel()
	const steps, most = 3000, 300
	random := rand.New(rand.NewPCG(1, 2))
	h := New(Options{})
	type one struct {
		*connection
		Subscription
	}
	var there []one
	leave := func() {
		i := random.IntN(len(there))
		h.index.Remove(there[i].connection)
		there = slices.Delete(there, i, i+1)
	}
	kept := 0
	for step := range steps {
		s, topics := randomSubscription(random)
		c := joinSilent(t, h, &s, topics...)
		there = append(there, one{c, s})
		for len(there) > most || len(there) > 0 && random.IntN(3) == 0 {
			leave()
		}
		n := event(
			randomName(random, "h"),
			[]string{"", randomName(random, "a")}[random.IntN(2)],
			randomTopic(random),
			0,
		)
		touched := h.index.touched(n)
		for _, c := range there {
			nothing := len(c.Hubs) == 0 // is not told from a list that is not known
			wants := c.Allows(n.Hub, n.Account) && c.Topics.Match(n.Topic)
			if got := slices.Contains(touched, c.group); got != wants && !nothing {
				t.Fatalf(
					"step %d: %s of %s in %s visits %+v: %t, want %t",
					step,
					n.Topic,
					n.Account,
					n.Hub,
					c.group.groupKey,
					got,
					wants,
				)
			}
		}
		for _, r := range h.index.buckets {
			kept = max(kept, len(r.matchCache))
		}
	}
	for len(there) > 0 {
		leave()
	}
	if n := h.index.size(); n != 0 || kept == 0 {
		t.Errorf("%d entries are left of nobody; the verdicts of %d topics were kept meanwhile", n, kept)
	}
}

func randomName(random *rand.Rand, of string) string { return of + strconv.Itoa(random.IntN(3)) }

func randomTopic(random *rand.Rand) string { return relay.Topics()[random.IntN(12)].Name }

func randomSubscription(random *rand.Rand) (s Subscription, topics []string) {
	account := []string{"", anyAccount, randomName(random, "a")}[random.IntN(3)]
	if random.IntN(3) == 0 {
		s = openedBy(randomName(random, "h"), account, []string{anyHub})
	} else {
		var hubs []string
		for range random.IntN(4) {
			hubs = append(hubs, randomName(random, "h")) // some of them twice
		}
		if random.IntN(3) == 0 {
			hubs = append(hubs, anyHub)
		}
		s = openedBy("", account, hubs)
	}
	for range random.IntN(4) {
		topics = append(topics, []string{"", "!"}[random.IntN(2)]+randomTopic(random))
	}
	return s, topics
}

// A notification calls Allows only for the clients whose keys see its hub and account, among thousands of others.
func TestIndex_SkipsOtherGrants(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		clients int
		of      func(i int) Subscription
		n       relay.Notification
		want    int64
	}{
		"without an account": {
			10_000, func(i int) Subscription {
				return openedBy("", "a"+strconv.Itoa(i), []string{"h" + strconv.Itoa(i/2)})
			},
			event("h7", "", "job.created", 0), 2,
		},
		"hubs of an account": {
			1000, func(i int) Subscription { return openedBy("", "a", []string{"other", "h" + strconv.Itoa(i)}) },
			event("h7", "a", "job.created", 0), 1,
		},
		"hubs of all accounts": {
			1000, func(i int) Subscription { return openedBy("", anyAccount, []string{"h" + strconv.Itoa(i)}) },
			event("h7", "a", "job.created", 0), 1,
		},
		"an account of all hubs": {
			1000, func(i int) Subscription { return openedBy("", "a"+strconv.Itoa(i), []string{anyHub}) },
			event("h7", "a7", "job.created", 0), 1,
		},
		"accounts of a hub": {
			1000, func(i int) Subscription { return openedBy("h7", "a"+strconv.Itoa(i), []string{"h7"}) },
			event("h7", "a7", "job.created", 0), 1,
		},
		"more hubs than are places": {
			10, func(int) Subscription { return openedBy("", "a", manyNames("h", maxIndexedHubs+1)) },
			event("h7", "a", "job.created", 0), 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := New(Options{})
			var asked atomic.Int64
			for i := range tt.clients {
				s := tt.of(i)
				allows := s.Allows
				s.Allows = func(hub, account string) bool {
					asked.Add(1)
					return allows(hub, account)
				}
				joinSilent(t, h, &s)
			}
			h.Broadcast(Batch{Notifications: []relay.Notification{tt.n}})
			if got := asked.Load(); got != tt.want {
				t.Errorf("%d of %d clients' grants were asked, want %d", got, tt.clients, tt.want)
			}
		})
	}
}

func manyNames(of string, n int) (list []string) {
	for i := range n {
		list = append(list, of+strconv.Itoa(i))
	}
	return list
}

// Groups that do not match a topic are matched once, and skipped after that.
func TestIndex_SkipsOtherTopics(t *testing.T) {
	t.Parallel()
	const others = 1000
	for name, of := range map[string]func(i int) Subscription{
		"a hub":        func(int) Subscription { return openedBy("h", "a", []string{"h"}) },
		"all accounts": func(i int) Subscription { return openedBy("", "a"+strconv.Itoa(i), []string{anyHub}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := New(Options{})
			n := benchEvent()
			n.Account = ""
			for i := range others {
				s := of(i)
				joinSilent(t, h, &s, otherTopics(i)...)
			}
			s := of(others)
			wants := joinSilent(t, h, &s, "container.*")
			if got := h.index.touched(n); len(got) != 1 || got[0] != wants.group {
				t.Fatalf("%d groups were visited, want 1", len(got))
			}
			for _, g := range h.index.groups {
				g.filter = nil // another match panics
			}
			if got := h.index.touched(n); len(got) != 1 || got[0] != wants.group {
				t.Errorf("%d groups were visited, want 1", len(got))
			}
		})
	}
}

// The cache is limited for any number of topics and patterns, and a bucket with few patterns has none.
func TestBucket_LimitsCache(t *testing.T) {
	t.Parallel()
	h := New(Options{})
	r := func() *bucket { return h.index.buckets[bucketKey{hubStream, "h", "a"}] }
	s := openedBy("h", "a", []string{"h"})
	first := joinSilent(t, h, &s)
	h.index.touched(event("h", "a", "job.created", 0))
	if r().matchCache != nil {
		t.Error("one client has verdicts kept")
	}
	var all []*connection
	for i := range 10 * bitsPerWord {
		all = append(all, joinSilent(t, h, &s, otherTopics(i)...))
		if i >= bitsPerWord {
			h.index.Remove(all[i-bitsPerWord])
		}
		h.index.touched(event("h", "a", fmt.Sprint("topic.", i), 0))
		if n := len(r().matchCache); n > maxCachedTopics {
			t.Fatalf("the verdicts of %d topics are kept", n)
		}
		for topic, list := range r().matchCache {
			if len(list) > 2 {
				t.Fatalf("%d verdicts of %s are kept", len(list)*bitsPerWord, topic)
			}
		}
	}
	for _, c := range all {
		h.index.Remove(c)
	}
	if r().matchCache != nil || r().patternCount != 1 {
		t.Errorf(
			"one client is left, with the verdicts of %d topics and a cost of %d",
			len(r().matchCache),
			r().patternCount,
		)
	}
	if h.index.Remove(first); h.index.size() != 0 {
		t.Error("something is left of nobody")
	}
}

// A client receives everything once and in order while other clients join and leave, with two partitions, one of
// which contains entries of a hub of the other.
func TestIndex_ConcurrentJoinAndLeave(t *testing.T) {
	t.Parallel()
	const messages, movers = 500, 8
	h := New(Options{Partitions: 2, Partition: func(hub string) int { return int(hub[1] - '0') }, QueueBytes: 64 << 20})
	stays := func(s Subscription, topics ...string) *connection {
		c := joinSilent(t, h, &s, topics...)
		c.state, c.handshakePending = stateLive, true // all is queued
		return c
	}
	own, ofAll := stays(openedBy("h0", "a", []string{"h0"})), stays(openedBy("", "a", []string{"h1", "h0"}), "job.*")
	var moving, sending sync.WaitGroup
	var over atomic.Bool
	for m := range movers {
		moving.Go(func() {
			for i := m; !over.Load(); i += movers {
				s := openedBy([]string{"h0", "h1", ""}[i%3], "a", []string{"h0", "h1"})
				c := joinSilent(t, h, &s, otherTopics(i%4000)...)
				other := joinSilent(t, h, &s, "*.created", "!stack.*")
				h.index.Remove(c)
				h.index.Remove(other)
			}
		})
	}
	for p := range 2 {
		sending.Go(func() {
			for i := range messages {
				hub := "h" + strconv.Itoa(p)
				if p == 1 && i%2 == 0 {
					hub = "h2" // of no partition
				}
				h.Broadcast(
					Batch{
						Partition: p,
						Gap:       i == messages/2,
						Notifications: []relay.Notification{
							event(hub, "a", "job.created", i),
							event("h0", "b", "job.created", i),
						},
					},
				)
			}
		})
	}
	sending.Wait()
	over.Store(true)
	moving.Wait()
	// The first partition's, and a resync; and of the second the half, and its resync.
	if n, m := len(own.queue.frames), len(ofAll.queue.frames); n != messages+1 || m != messages+messages/2+2 {
		t.Errorf("%d frames of the hub came, and %d of the account", n, m)
	}
	next := 0
	for _, frame := range own.queue.frames {
		if bytes.Contains(frame, fmt.Appendf(nil, `"n":%d,`, next)) {
			next++
		}
	}
	if next != messages {
		t.Errorf("%d of %d messages came in order", next, messages)
	}
	h.index.Remove(own)
	h.index.Remove(ofAll)
	if n := h.index.size(); n != 0 {
		t.Errorf("%d entries are left of nobody", n)
	}
}
