package clients

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

func TestMessagesCarryCursors(t *testing.T) {
	t.Parallel()
	r := startRelayed(t, redistest.Start(t), 1, Options{})
	plain, with, account := r.dial(
		t,
		"hub=h&account=a",
	), r.dial(
		t,
		"hub=h&account=a&cursor=true",
	), r.dial(
		t,
		"account=a&cursor=true",
	)
	r.publish(t, "h", 1, 3, 70)
	for i := range 3 {
		a, b, c := next(t, plain), next(t, with), next(t, account)
		if a.Cursor != "" || b.Cursor == "" || b.Cursor != c.Cursor || a.N != i+1 {
			t.Fatalf("cursors %q %q %q", a.Cursor, b.Cursor, c.Cursor)
		}
		if want := strings.TrimSuffix(a.text, "}") + `,"cursor":"` + b.Cursor + `"}`; b.text != want {
			t.Errorf("%s\nwant %s", b.text, want)
		}
	}
}

// A client that starts now first receives the current cursor, and resumes from it without loss.
func TestBeginNow(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			r, other := startRelayed(t, redis, partitions, Options{}), startRelayed(t, redis, partitions, Options{})
			hub := hubsInEach(r)[partitions-1]
			for round, stream := range []string{
				"account=a&hub=" + hub, "account=a", "account=a&topics=image.*,job.*&hub=" + hub,
			} {
				stop := make(chan struct{})
				var traffic sync.WaitGroup
				traffic.Go(func() { // publish while the client starts, to get a cursor between entries
					for i := 1; ; i++ {
						select {
						case <-stop:
							return
						default:
							r.publish(t, hub, i, 1, 0)
						}
					}
				})
				conn := r.dial(t, stream+"&after=now")
				m := next(t, conn)
				if m.Topic != "hubrelay.cursor" || m.Cursor == "" || m.Object.State != "" || m.Object.Error != "" ||
					len(m.Object.ID) != 24 {
					t.Fatalf("%s: it begins with %s", stream, m.text)
				}
				first := next(t, conn)
				close(stop)
				traffic.Wait()
				r.publish(t, hub, 1_000_000+round, 1, 0)
				var live []string
				for got := first; ; got = next(t, conn) {
					if live = append(live, got.text); got.N == 1_000_000+round {
						break
					}
				}
				for _, node := range []*relayed{r, other} {
					again := node.dial(t, stream+"&after="+m.Cursor)
					for i, want := range live {
						if got := next(t, again).text; withoutCursor(got) != withoutCursor(want) {
							t.Fatalf("%s: message %d is %s, it was %s", stream, i, got, want)
						}
					}
				}
			}
		})
	}
}

// withoutCursor leaves out what nodes may differ in.
func withoutCursor(text string) string {
	before, _, _ := strings.Cut(text, `,"cursor":`)
	return before
}

// A replay from any position of a batch sends everything after it once, from memory or from the log.
func TestResumeFromEveryPosition(t *testing.T) {
	t.Parallel()
	const count = 40
	redis := redistest.Start(t)
	for name, o := range map[string]Options{
		"kept": {}, "read": {HistoryBytes: 1}, "partly kept": {HistoryBytes: 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelayed(t, redis, 1, o)
			hub := "h " + name
			first := r.dial(t, "cursor=true&account=a&hub="+strings.ReplaceAll(hub, " ", "%20"))
			r.publish(t, hub, 1, count, 0)
			r.publish(t, "other", 1, count, 0)
			all := expect(t, first, 1, count)
			r.settled(t)
			var conns []*websocket.Conn
			for i, m := range all {
				conn := r.dial(t, "account=a&hub="+strings.ReplaceAll(hub, " ", "%20")+"&after="+m.Cursor)
				for k, again := range expect(t, conn, i+2, count) {
					if again.text != all[i+1+k].text {
						t.Fatalf("%s\nwas %s", again.text, all[i+1+k].text)
					}
				}
				conns = append(conns, conn)
			}
			r.publish(t, hub, count+1, 1, 0)
			for _, conn := range conns {
				expect(t, conn, count+1, count+1)
			}
		})
	}
}

func TestResumeKeepsTopicsAndGrants(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	for _, most := range []int{0, 1} {
		r := startRelayed(t, redis, 1, Options{HistoryBytes: most})
		conn := r.dial(t, "account=*&cursor=true")
		r.publish(t, "h1", 1, 1, 0)
		from := next(t, conn).Cursor
		for i, hub := range []string{"foreign", "h2", "h1", "h3"} {
			r.publish(t, hub, 2+i, 1, 0)
		}
		r.settled(t)
		for query, want := range map[string][]int{
			"account=*":                     {3, 4, 5},
			"account=a":                     {3, 4, 5},
			"account=b":                     nil,
			"account=":                      nil,
			"hub=h1&account=a":              {4},
			"hub=h2&account=a":              {3},
			"hub=h1&account=b":              nil,
			"hub=foreign&account=*":         nil,
			"account=*&topics=container.*":  nil,
			"hub=h1&account=*&topics=job.*": {4},
		} {
			conn := r.dial(t, query+"&after="+from)
			for _, n := range want {
				expect(t, conn, n, n)
			}
			r.joined(t)
			r.Server.Broadcast(Batch{Notifications: []relay.Notification{ // for all, to detect extra messages
				event("h1", "", "stack.container.job.error", 99), event("h2", "", "container.job.error", 99),
			}})
			if strings.Contains(query, "foreign") || strings.Contains(query, "topics=job") {
				continue
			}
			if m := next(t, conn); m.N != 99 {
				t.Errorf("%s: got %s behind the last", query, m.text)
			}
			_ = conn.Close()
		}
	}
}

func TestCursorsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	n := startNode(t, Options{Partitions: 2, Partition: func(hub string) int { return len(hub) % 2 }}, nil)
	one := func(partitions, partition int) string {
		return string(testCursors.Append(nil, partitions, partition, []streamid.Position{{MS: 1_795_000_000_000}}))
	}
	for _, tt := range []struct{ query, want string }{
		{"account=a&after=0-0", "neither a cursor"},
		{"account=a&after=1795000000000-0", "neither a cursor"},
		{"hub=even&after=" + one(2, 0)[1:], "neither a cursor"},
		{"account=a&after=" + one(2, 0), "of a hub"},
		{"hub=odd&after=" + one(2, 0), "another hub"},
		{"hub=even&after=" + one(2, 1), "another hub"},
	} {
		_, answer, err := n.dialer().Dial(n.url(tt.query), nil)
		if err == nil {
			t.Errorf("%s is accepted", tt.query)
			continue
		}
		text, _ := io.ReadAll(answer.Body)
		if _ = answer.Body.Close(); answer.StatusCode != http.StatusUnprocessableEntity ||
			!strings.Contains(string(text), tt.want) ||
			!strings.Contains(string(text), "after or Last-Event-ID") {
			t.Errorf("%s: %d %s", tt.query, answer.StatusCode, text)
		}
	}
	if n.Clients() != 0 || n.index.size() != 0 {
		t.Error("a refused client stays in the server")
	}
}

// Clients that are cut off at any time and come back miss nothing and get nothing twice, while notifications are
// published as fast as they can be.
func TestResumeWhilePublishing(t *testing.T) {
	t.Parallel()
	const batches, size = 25, 20
	for _, tt := range []struct {
		partitions, most int
	}{{1, 0}, {1, 1}, {2, 0}, {2, 50_000}, {2, 1}} {
		t.Run(fmt.Sprintf("%d partitions, %d bytes kept", tt.partitions, tt.most), func(t *testing.T) {
			t.Parallel()
			redis, o := redistest.Start(t), Options{HistoryBytes: tt.most}
			nodes := []*relayed{startRelayed(t, redis, tt.partitions, o), startRelayed(t, redis, tt.partitions, o)}
			r := nodes[0]
			hubs := hubsInEach(r)
			var done sync.WaitGroup
			for i, query := range []string{
				"account=*", "account=a", "account=a", "hub=" + hubs[0] + "&account=a",
				"hub=" + hubs[len(hubs)-1] + "&account=a",
			} {
				want := map[string]int{}
				for _, hub := range hubs {
					if !strings.Contains(query, "hub=") || strings.Contains(query, "hub="+hub+"&") {
						want[hub] = batches * size
					}
				}
				conn := r.dial(t, query+"&cursor=true")
				done.Go(func() { followAndReconnect(t, nodes, conn, query, want, uint64(i)) })
			}
			for _, hub := range hubs {
				done.Go(func() {
					for i := range batches {
						r.publish(t, hub, i*size, size, 50)
					}
				})
			}
			done.Wait()
		})
	}
}

// hubsInEach returns a hub in each partition.
func hubsInEach(r *relayed) []string {
	hubs := make([]string, len(r.feeds))
	for i, found := 0, 0; found < len(hubs); i++ {
		hub := fmt.Sprintf("h%d", i)
		if p := r.opts.Partition(hub); hubs[p] == "" {
			hubs[p] = hub
			found++
		}
	}
	return hubs
}

// followAndReconnect reads until it has so many of each hub, in order, and comes back to any node after a random number
// each time.
func followAndReconnect(
	t *testing.T,
	nodes []*relayed,
	conn *websocket.Conn,
	query string,
	want map[string]int,
	seed uint64,
) {
	random := rand.New(rand.NewPCG(seed, 6))
	got, after, left := map[string]int{}, "", random.IntN(60)
	for {
		m, err := read(conn)
		if err != nil || m.Topic != "job.created" || m.N != got[m.Hub] {
			t.Errorf("%s: got %.200s, want number %d: %v", query, m.text, got[m.Hub], err)
			return
		}
		got[m.Hub]++
		after = m.Cursor
		if maps.Equal(got, want) {
			return
		}
		if left--; left > 0 {
			continue
		}
		_ = conn.Close()
		left = random.IntN(60)
		r := nodes[random.IntN(len(nodes))]
		var answer *http.Response
		if conn, answer, err = r.dialer().Dial(r.url(query+"&after="+after), nil); err != nil {
			t.Errorf("%s: %v", query, err)
			return
		}
		_ = answer.Body.Close()
		defer func() { _ = conn.Close() }()
	}
}

// The step from replay to broadcasts, again and again while broadcasts run.
func TestSplice(t *testing.T) {
	t.Parallel()
	const ahead = 5000 // much less than the history, so no client gets a resync
	n := startNode(t, Options{QueueBytes: 64 << 20}, nil)
	ended := make(chan struct{})
	var broadcasts, clients sync.WaitGroup
	var reached [4]atomic.Int64
	for k := range reached {
		conn := n.dial(t, "hub=h&cursor=true")
		clients.Go(func() {
			last := 0
			for i := range 3000 {
				m, err := read(conn)
				if err != nil || last != 0 && m.N != last+1 {
					t.Errorf("got %s behind %d: %v", m.text, last, err)
					return
				}
				last = m.N
				reached[k].Store(int64(last))
				if i%30 == 29 {
					_ = conn.Close()
					conn = n.dial(t, "hub=h&after="+m.Cursor)
				}
			}
		})
	}
	broadcasts.Go(func() {
		for i := 1; ; {
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Microsecond):
			}
			slowest := int64(i)
			for k := range reached {
				slowest = min(slowest, reached[k].Load())
			}
			if int64(i)-slowest > ahead {
				continue
			}
			e := event("h", "", "job.created", i)
			e.Cursor = fmt.Sprintf("%d-0", i)
			n.Broadcast([]relay.Notification{e})
			i++
		}
	})
	clients.Wait()
	close(ended)
	broadcasts.Wait()
}
