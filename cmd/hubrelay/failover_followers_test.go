package main_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// failoverPartitions is the number of masters. Each has one partition.
const failoverPartitions = 3

// receivedMessage is a notification that a follower received, or the end of a gap.
type receivedMessage struct {
	hub, id string // empty for a gap
	at      streamid.Cursor
}

// failoverCursors are the cursors of the nodes, whose key useCursorKey has stored.
var failoverCursors = streamid.NewCursors(streamid.CursorKey{})

// useCursorKey stores the key of cursors before the first node does.
func useCursorKey(t *testing.T, keys keyspace.Space, store redis.Cmdable) {
	t.Helper()
	var key streamid.CursorKey
	if err := store.Set(t.Context(), keys.Global("cursorkey"), key[:], 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// positions records the notifications of a follower with their positions in the log.
type positions struct {
	from            streamid.Cursor
	receivedMessage []receivedMessage
}

func (b *positions) begin(text string) { b.from, _ = failoverCursors.Parse(text, failoverPartitions) }

func (b *positions) take(m message, text string) error {
	at, err := failoverCursors.Parse(text, failoverPartitions)
	switch {
	case err != nil:
		return err
	case m.Topic == relay.TopicResync:
		b.receivedMessage = append(b.receivedMessage, receivedMessage{at: at})
	default:
		b.receivedMessage = append(b.receivedMessage, receivedMessage{m.Context.HubID, m.Object.ID, at})
	}
	return nil
}

// failoverFollower follows a stream over failovers.
type failoverFollower struct {
	*follower
	book *positions
}

// followAll starts followers of every kind, for hubs in each partition and for all hubs.
func (f *failover) followAll() {
	partitions := make(map[int]bool)
	for _, hub := range []string{"hub-1", "hub-3", "hub-6", ""} {
		if hub != "" {
			partitions[f.keys.Partition(hub)] = true
		}
		for kind := range followerKinds {
			book := &positions{}
			one := failoverFollower{newFollower(kind, f.way.Addr(), hub, "", book,
				rand.New(rand.NewPCG(1, uint64(len(f.followers))))), book}
			one.forgetful, one.brisk = true, true
			f.followers = append(f.followers, one)
			one.start(nil)
		}
	}
	if len(partitions) != failoverPartitions {
		f.t.Fatalf("there are followers of the partitions %v", partitions)
	}
	f.t.Cleanup(func() {
		for _, one := range f.followers {
			one.end()
		}
	})
	for _, one := range f.followers {
		testkit.Eventually(f.t, one.name+" to begin", func() error {
			one.mu.Lock()
			defer one.mu.Unlock()
			if !one.began {
				return fmt.Errorf("it received nothing, %w", one.wrong)
			}
			return nil
		})
	}
}

// failoverTTL is the lifetime of tokens. It allows for a failover, because tokens are renewed after a third of it.
const failoverTTL = 15 * time.Second

// holdTokens opens an event stream with a token at each master, on a hub without events. The returned probe waits
// until all tokens have been renewed since its first call.
func (f *failover) holdTokens(store redis.UniversalClient) (renewed func() error) {
	f.t.Helper()
	held := make(map[int]string) // keys by master
	for len(held) < 3 {
		d := f.nodes[len(held)%2].Load()
		token := d.Token(f.t, opsKey, "quiet")
		key := f.keys.Token(fmt.Sprintf("%x", sha256.Sum256([]byte(token))))
		slot, err := store.ClusterKeySlot(f.t.Context(), key).Result()
		if err != nil {
			f.t.Fatal(err)
		}
		if master := int(slot) * 3 / 16384; held[master] == "" {
			held[master] = key
			d.openEvents(f.t, token)
		}
	}
	before := make(map[string]time.Time)
	return func() (problem error) {
		for _, key := range held {
			left, err := store.PTTL(f.t.Context(), key).Result()
			ends := time.Now().Add(left)
			if before[key].IsZero() {
				before[key] = ends
			}
			switch {
			case err != nil:
				problem = err
			case left < 0:
				problem = fmt.Errorf("the token %s of an open stream is gone", key)
			case ends.Sub(before[key]) < time.Second:
				problem = fmt.Errorf("%s ends in %s", key, left)
			}
		}
		return problem
	}
}

// openEvents opens an event stream until the test ends, without reading it.
func (d *daemon) openEvents(t *testing.T, token string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.Public+notificationsPath+"?token="+
		token, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatalf("the stream was answered %d", res.StatusCode)
	}
}

// hasReceived returns a probe: all followers of the hub have received the object.
func (f *failover) hasReceived(hub, id string) func() error {
	return func() error {
		for _, one := range f.followers {
			one.mu.Lock()
			known := one.hub != "" && one.hub != hub ||
				slices.ContainsFunc(one.book.receivedMessage, func(t receivedMessage) bool {
					return t.hub == hub &&
						t.id == id
				})
			one.mu.Unlock()
			if !known {
				return fmt.Errorf("%s did not receive %s", one.name, id)
			}
		}
		return nil
	}
}

// entry is an entry of the log.
type entry struct {
	hub, id string
	at      streamid.Position
}

// logs reads the partitions of the log.
func (f *failover) logs(store redis.UniversalClient) [failoverPartitions][]entry {
	f.t.Helper()
	var logs [failoverPartitions][]entry
	for p := range logs {
		for e := range logEntries(f.t, store, f.keys.InPartition("log", p)) {
			at, _ := streamid.ParseEntry(e.ID, fmt.Sprint(e.Values["id"]))
			logs[p] = append(logs[p], entry{fmt.Sprint(e.Values["hub"]), objectID(fmt.Sprint(e.Values["data"])), at})
		}
	}
	return logs
}

// checkFollowers checks that each follower received the log from its start position, in order, without repeats and
// omissions. Gaps are allowed only in partitions that lost data.
func (f *failover) checkFollowers(store redis.UniversalClient, struck ...int) {
	f.t.Helper()
	logs, gaps, heard := f.logs(store), 0, 0
	complete := func(one failoverFollower) error {
		one.mu.Lock()
		defer one.mu.Unlock()
		if one.wrong != nil {
			return fmt.Errorf("%s: %w", one.name, one.wrong)
		}
		for p, log := range logs {
			if one.hub != "" {
				if f.keys.Partition(one.hub) != p {
					continue
				}
				log = slices.DeleteFunc(slices.Clone(log), func(e entry) bool { return e.hub != one.hub })
			}
			if err := one.book.compare(f.keys, p, log, slices.Contains(struck, p), one.hub == ""); err != nil {
				return fmt.Errorf("%s, in partition %d: %w", one.name, p, err)
			}
		}
		return nil
	}
	for _, one := range f.followers {
		testkit.Eventually(f.t, one.name+" to receive everything", func() error { return complete(one) })
	}
	for _, one := range f.followers {
		one.end()
		if err := complete(one); err != nil { // a superfluous notification can arrive last
			f.t.Error(err)
		}
		for _, what := range one.book.receivedMessage {
			if heard++; what.hub == "" {
				gaps++
			}
		}
	}
	f.t.Logf("%d followers received %d events and %d gaps", len(f.followers), heard-gaps, gaps)
}

// compare checks the notifications of one partition. A notification that the log lacks must be followed by a gap
// immediately, each time that it is received. No gap may hide an entry of the log.
func (b *positions) compare(keys keyspace.Space, p int, log []entry, struck, account bool) error {
	at, _ := b.from.At(p)
	next := func() (e entry, ok bool) { // in the log
		i, found := slices.BinarySearchFunc(log, at, func(e entry, at streamid.Position) int {
			return e.at.Compare(at)
		})
		if found {
			i++
		}
		if i == len(log) {
			return entry{}, false
		}
		return log[i], true
	}
	had, lost := make(map[entry]bool), ""
	for _, what := range b.receivedMessage {
		if what.hub != "" && keys.Partition(what.hub) != p {
			continue
		}
		pos, _ := what.at.At(p)
		e := entry{what.hub, what.id, pos}
		n, more := next()
		switch {
		case what.hub == "" && account && !struck: // of another partition
			continue
		case what.hub == "" && !struck:
			return fmt.Errorf("received a gap after %v", at)
		case more && n.at.Compare(pos) < 0, what.hub == "" && more && n.at.Compare(pos) == 0:
			return fmt.Errorf("%v was left out, before %v", n, e)
		case what.hub == "":
			at, lost = pos, ""
			// After a reconnection, a node that has not seen the loss yet sends them again, and then a gap.
			maps.DeleteFunc(had, func(e entry, _ bool) bool { return e.at.Compare(pos) > 0 })
			continue
		case had[e] || pos.Compare(at) <= 0:
			return fmt.Errorf("received %v after %v", e, at)
		case n != e:
			lost = e.id
		case lost != "":
			return fmt.Errorf("received %v after %s, which the log lacks, without a gap before", e, lost)
		}
		had[e], at = true, pos
	}
	if n, more := next(); more {
		return fmt.Errorf("%v was not told, it is at %v", n, at)
	}
	if lost != "" {
		return fmt.Errorf("received %s, which the log lacks, without a gap after it", lost)
	}
	return nil
}
