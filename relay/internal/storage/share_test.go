package storage

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const testMemory = 32 << 20

// shareRig is a monitor whose events take memory, and in which nothing is trimmed.
type shareRig struct {
	t      *testing.T
	m      *Monitor
	memory redisconn.Memory
}

func newShareRig(t *testing.T, used, maxMemory int64) *shareRig {
	r := &shareRig{t: t, memory: redisconn.Memory{Used: used, Max: maxMemory}}
	r.m, _ = newTestMonitor(new(bytes.Buffer), func() (redisconn.Memory, error) { return r.memory, nil })
	r.m.Measure(t.Context())
	return r
}

// store reports whether a publisher may store an event.
func (r *shareRig) store(publisher string, size int64) bool {
	r.t.Helper()
	err := r.m.CheckPublisher(publisher)
	if err == nil {
		err = r.m.TakeRoom(publisher, size)
	}
	var public *relay.Error
	if err != nil && (!errors.As(err, &public) || public.Code != relay.CodeStorageFull) {
		r.t.Fatalf("got error %v, want %s", err, relay.CodeStorageFull)
	}
	if err == nil {
		r.memory.Used += size
	}
	return err == nil
}

// Publishers that flood the storage stop at the limit. A quiet one may store more for a while, up to the end of the reserve.
func TestMonitor_TakeRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ count, quietSeconds int }{{1, 600}, {3, 600}, {20, 200}, {50, 200}} {
		count := tt.count
		floods := make([]string, count)
		for i := range floods {
			floods[i] = "flood " + strconv.Itoa(i)
		}
		r := newShareRig(t, testMemory/2, testMemory)
		quietUntil := 0
		for second := range 2000 {
			if r.store("quiet", 500) {
				quietUntil = second
			}
			for _, name := range floods {
				for range 400 / count {
					r.store(name, 2<<10)
				}
			}
			r.m.Measure(t.Context())
			if used := float64(r.memory.Used) / testMemory; used > 0.952 {
				t.Fatalf("%.1f %% are used in second %d", used*100, second)
			}
		}
		if used := float64(r.memory.Used) / testMemory; used < 0.9 || r.m.Check() == nil {
			t.Errorf("only %.1f %% are used, and publishing continues", used*100)
		}
		if quietUntil < tt.quietSeconds {
			t.Errorf("%d floods: the quiet publisher was rejected after %d s", count, quietUntil)
		}
	}
}

// Large requests are possible while there is room for them, and many publishers do not lower it.
func TestMonitor_TakeRoomForLargeRequests(t *testing.T) {
	t.Parallel()
	r := newShareRig(t, testMemory*8/10, testMemory)
	for i := range 1000 {
		r.store(string(rune('a'+i)), 100)
	}
	if !r.store("large", 1<<20) || r.store("large", 1<<20) {
		t.Error("want one large request per interval")
	}
	r.m.Measure(t.Context())
	if !r.store("large", 1<<20) || r.store("larger", 8<<20) {
		t.Error("want as many large requests as there is room for")
	}
}

// Accounts that only get tokens do not lower the average of the publishers. While the storage is full, they count.
func TestMonitor_TakeRoomForRequest(t *testing.T) {
	t.Parallel()
	r := newShareRig(t, testMemory*8/10, testMemory)
	for i := range 100 {
		if err := r.m.TakeRoomForRequest(strconv.Itoa(i), smallBytes-1); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.m.shares.events.byName); n != 0 {
		t.Errorf("got %d publishers, want none", n)
	}
	rejectsFlood := func() (rejected bool) {
		for range 1000 {
			rejected = rejected || r.m.TakeRoomForRequest("flood", smallBytes-1) != nil
		}
		return rejected
	}
	if !rejectsFlood() {
		t.Error("many small tokens have no limit")
	}
	if err := r.m.TakeRoomForRequest("large", testMemory); err == nil {
		t.Error("a large token has no limit")
	}
	r.memory.Used = testMemory * 95 / 100
	r.m.Measure(t.Context())
	few := 0
	for range maxSmallBytes / smallBytes {
		if r.m.TakeRoomForRequest("few", smallBytes-1) != nil {
			few++
		}
	}
	if few == 0 {
		t.Error("a few small tokens have no limit in a full storage")
	}
	if !rejectsFlood() {
		t.Error("small tokens have no limit in a full storage")
	}
}

// Tokens of many accounts fill the storage only up to the reserve for events.
func TestMonitor_TakeRoomForRequestsOfManyAccounts(t *testing.T) {
	t.Parallel()
	r := newShareRig(t, testMemory*8/10, testMemory)
	r.store("publisher", 1<<20)
	r.store("quiet", 100<<10)
	for second := range 10 {
		for i := range 500 {
			account := strconv.Itoa(second*1000 + i)
			for range maxSmallBytes / smallBytes / 4 {
				if r.m.TakeRoomForRequest(account, smallBytes-1) == nil {
					r.memory.Used += smallBytes - 1
				}
			}
		}
		r.m.Measure(t.Context())
	}
	if err := r.m.TakeRoomForRequest("token", smallBytes-1); err == nil {
		t.Error("tokens of many accounts have no limit")
	}
	for _, name := range []string{"quiet", "publisher"} { // the publisher is the loudest one
		if !r.store(name, 64<<10) {
			t.Errorf("tokens of many accounts have used the reserve for the events of %s", name)
		}
	}
}

// Events that fill the storage do not stop the tokens of others, also if another account floods tokens.
func TestMonitor_TakeRoomForRequestsBesideEvents(t *testing.T) {
	t.Parallel()
	for _, floods := range []int{0, 1, 200} {
		r := newShareRig(t, testMemory*8/10, testMemory)
		for range 500 {
			r.store("publisher", 2<<10)
		}
		r.memory.Used = testMemory * 91 / 100
		r.m.Measure(t.Context())
		const seconds = 300
		tokens := make(map[string]int)
		request := func(account string) {
			if r.m.TakeRoomForRequest(account, 250) == nil {
				r.memory.Used += 250
				tokens[account]++
			}
		}
		for range seconds {
			for range floods {
				request("flood")
			}
			request("quiet")
			request("other")
			r.m.Measure(t.Context())
		}
		if tokens["quiet"] != seconds || tokens["other"] != seconds ||
			floods > 1 && tokens["flood"] > floods { // it is the only account at first
			t.Errorf("%d floods: got %v tokens in %d seconds of a full storage", floods, tokens, seconds)
		}
	}
}

// Without a limit of the memory, publishers have none.
func TestMonitor_TakeRoomWithoutLimit(t *testing.T) {
	t.Parallel()
	r := newShareRig(t, 1<<40, 0)
	for range 3 {
		for range 2 {
			if !r.store("a", 1<<40) {
				t.Error("a publisher was rejected")
			}
		}
		r.m.Measure(t.Context())
	}
}

// Publishers that were active long ago need no memory.
func TestMonitor_ForgetsPublishers(t *testing.T) {
	t.Parallel()
	r := newShareRig(t, 0, testMemory)
	r.store("a", 1000)
	for range 3600 {
		r.m.Measure(t.Context())
	}
	if n := len(r.m.shares.events.byName); n != 0 {
		t.Errorf("%d publishers are known after an hour", n)
	}
}

// A repeat of a request stores nothing, so its publisher stays quiet. It returns no room twice.
func TestMonitor_ReturnRoom(t *testing.T) {
	t.Parallel()
	r := newShareRig(t, testMemory*8/10, testMemory)
	for i := range 10 {
		r.store("other "+strconv.Itoa(i), 100<<10)
	}
	isQuiet := func() bool { return r.m.shares.events.isQuiet(r.m.shares.events.byName["repeating"]) }
	if err := r.m.TakeRoom("repeating", 1<<20); err != nil || isQuiet() {
		t.Fatalf("got error %v, quiet %t, want a loud publisher", err, isQuiet())
	}
	room := r.m.shares.room
	r.m.ReturnRoom("repeating", 1<<20)
	r.m.ReturnRoom("repeating", 1<<20)
	r.m.ReturnRoom("unknown", 1<<20)
	if got := r.m.shares.room; !isQuiet() || got != room {
		t.Errorf("got a quiet publisher: %t, and room for %v bytes, want true and %v", isQuiet(), got, room)
	}
}
