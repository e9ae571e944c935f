package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// failoverHubs is high enough that each of three partitions has some hubs.
const failoverHubs = 12

// failover is a test with two nodes on a replicated Redis, retrying producers, followers and a webhook.
type failover struct {
	t         *testing.T
	keys      keyspace.Space
	gate      *gate
	hooks     *receiver
	nodes     []*atomic.Pointer[daemon]
	way       *testkit.Proxy // to any of the nodes
	followers []failoverFollower
	producers []*retryingProducer
}

// newFailover starts the nodes. section is added to their configuration.
func newFailover(t *testing.T, store redis.Cmdable, redisConfig, section string) *failover {
	t.Helper()
	f := &failover{t: t, gate: newGate()}
	t.Cleanup(f.gate.open)
	var err error
	if f.keys, err = keyspace.New("hubrelay", failoverPartitions, true); err != nil {
		t.Fatal(err)
	}
	f.hooks = receive(t, func(w http.ResponseWriter, h hook) {
		f.gate.pass()
		if crc32.ChecksumIEEE([]byte(h.id))%5 == 0 && h.attempt == 1 { // some tests need a second one
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	useCursorKey(t, f.keys, store)
	text := withMigrationCapability(daemonConfig{
		redis: fmt.Sprintf("%s, partitions: %d", redisConfig, failoverPartitions), auth: fmt.Sprintf("token_ttl: %s",
			failoverTTL),
		sinks: webhookSink("hook", f.hooks.url+"/", ", timeout: 5s"), keys: section,
	}.renderYAML())
	for range 2 {
		node := &atomic.Pointer[daemon]{}
		node.Store(serveFile(t, writeFile(t, tempDir(t), "hubrelay.yaml", text)))
		f.nodes = append(f.nodes, node)
	}
	f.way = testkit.StartProxy(t, func() string { return f.nodes[rand.IntN(len(f.nodes))].Load().Public })
	f.followAll()
	f.produce("before")
	return f
}

// produce starts a producer for each of several hubs in different partitions.
func (f *failover) produce(name string) {
	for i := range failoverHubs {
		f.producers = append(f.producers, startRetryingProducer(f.t, fmt.Sprintf("hub-%d", i),
			fmt.Sprintf("%s-%d", name, i),
			f.nodes, 100*time.Millisecond))
	}
}

func (f *failover) goesOn(what string) {
	f.t.Helper()
	for _, p := range f.producers[len(f.producers)-failoverHubs:] {
		testkit.Eventually(f.t, "more to be accepted "+what, p.more(5))
	}
	f.t.Log("published", what)
}

// finish stops the producers while deliveries are in progress, and returns when the replicas have all data.
func (f *failover) finish(primaries []*redis.Client) {
	f.t.Helper()
	f.gate.shut()
	f.goesOn("while the webhook hangs")
	for _, p := range f.producers {
		p.end()
	}
	for _, c := range primaries {
		primary := f.replication(c, "master_repl_offset:")
		testkit.Eventually(f.t, "the replica to have everything", func() error {
			if replica := f.replication(c, "slave0:"); replica < primary {
				return fmt.Errorf("it is at %d of %d", replica, primary)
			}
			return nil
		})
	}
}

// replication returns the offset in a line of INFO.
func (f *failover) replication(c *redis.Client, line string) (offset int) {
	f.t.Helper()
	info, err := c.Info(f.t.Context(), "replication").Result()
	if err != nil {
		f.t.Fatal(err)
	}
	for l := range strings.Lines(info) {
		text, found := strings.CutPrefix(l, line)
		if _, of, ok := strings.Cut(text, "offset="); ok {
			text, _, _ = strings.Cut(of, ",")
		}
		if found {
			offset, _ = strconv.Atoi(strings.TrimSpace(text))
		}
	}
	return offset
}

// lose publishes to each hub of a partition notifications that the replica of its primary never receives, and waits
// until the followers receive them. The replica hangs until the primary has ended and it must take over.
func (f *failover) lose(primary, replica *redistest.Server, partition, answer int) {
	f.t.Helper()
	replica.Signal(syscall.SIGSTOP)
	// Data in flight still reaches the replica.
	if err := primary.Client().ClientKillByFilter(f.t.Context(), "TYPE", "REPLICA").Err(); err != nil {
		f.t.Fatal(err)
	}
	var published sync.WaitGroup
	for i := range failoverHubs {
		hub := fmt.Sprintf("hub-%d", i)
		if f.keys.Partition(hub) != partition {
			continue
		}
		published.Go(func() {
			post := testkit.Request{
				Method: "POST", Key: opsKey, Hub: hub, ContentType: "application/json",
				Body: lostNote(hub),
			}
			if r, err := f.nodes[0].Load().Try(context.Background(), post); err != nil || r.Status != answer {
				f.t.Errorf("publish to %s while the replica hangs: %d %s, %v", hub, r.Status, r.Body, err)
			}
		})
	}
	published.Wait()
	for i := range failoverHubs {
		if hub := fmt.Sprintf("hub-%d", i); f.keys.Partition(hub) == partition {
			testkit.Eventually(f.t, "the followers to receive it", f.hasReceived(hub, "lost/"+hub))
		}
	}
}

func lostNote(hub string) string {
	return fmt.Sprintf(`{"topic":"job.created","object":{"id":"lost/%s"}}`, hub)
}

// produced reports whether id is from a producer, and not from lost notifications or from jobs.
func (f *failover) produced(id string) bool {
	return slices.ContainsFunc(f.producers, func(p *retryingProducer) bool { return strings.HasPrefix(id, p.name+"-") })
}

// check checks that the webhook received everything that was accepted.
func (f *failover) check() {
	f.t.Helper()
	f.gate.open()
	taken := make(map[string]int)
	for _, p := range f.producers {
		p.end()
		for _, id := range p.accepted {
			taken[id] = 0
		}
	}
	testkit.Eventually(f.t, "every webhook", f.hooks.acceptedAll("/", slices.Collect(maps.Keys(taken))))
	twice := 0
	for _, h := range f.hooks.of("/") {
		_, accepted := taken[h.id]
		if !accepted && f.produced(objectID(h.body)) {
			f.t.Errorf("%s came and was never accepted", h.id)
		}
		if !accepted || h.status/100 != 2 {
			continue
		}
		if taken[h.id]++; taken[h.id] == 2 {
			twice++
		}
	}
	f.t.Logf("%d accepted, all came, %d of them more than once", len(taken), twice)
}

// TestLongClusterFailover kills a master during deliveries, and moves a slot under load. Everything that was accepted
// and replicated is delivered, and so is everything accepted later. Followers receive a gap for lost data.
func TestLongClusterFailover(t *testing.T) {
	t.Parallel()
	masters, replicas, url := redistest.StartCluster(t)
	site := newSite(t)
	store := inCluster(t, append(masters, replicas...)...)
	f := newFailover(t, store, fmt.Sprintf("url: %q, min_replicas: 1", url), site.section())
	site.nodes = []*daemon{f.nodes[0].Load(), f.nodes[1].Load()}
	renewed := f.holdTokens(store)
	struck := f.keys.Partition("hub-1")
	job := site.migrate(0, "b")
	f.goesOn("at first")
	if j := site.over(job); j.State.Current != relay.JobCompleted {
		t.Errorf("the job before the failover: %+v", j)
	}
	f.finish([]*redis.Client{masters[0].Admin, masters[1].Admin, masters[2].Admin})
	f.lose(masters[struck].Server, replicas[struck].Server, struck, http.StatusServiceUnavailable)
	masters[struck].Kill()
	replicas[struck].Signal(syscall.SIGCONT)
	replicas[struck].TakeOver()
	masters[struck].Restart() // as a replica; without one nothing is accepted
	f.gate.open()
	f.produce("after")
	f.goesOn("by the new master")
	_ = renewed() // from now on
	job = site.migrate(1, "a")

	redistest.MoveSlot(t, &masters[0], &masters[2], f.keys.Slot(f.keys.InPartition("log", 0)))
	f.goesOn("after the slot migration")
	if j := site.over(job); j.State.Current != relay.JobCompleted {
		t.Errorf("the job after the failover: %+v", j)
	}
	site.expectOn("a")
	f.check()
	f.checkFollowers(store, struck)
	testkit.Eventually(t, "the tokens of streams to be renewed", renewed)
}

// TestLongSentinelFailover does the same with Sentinel, which selects the new primary. All data is on one primary.
func TestLongSentinelFailover(t *testing.T) {
	t.Parallel()
	port := redistest.FreePort(t)
	primary, replica := redistest.StartPair(t, port)
	f := newFailover(t, primary.Client(), fmt.Sprintf("url: %q", redistest.StartSentinels(t, port)), "")
	f.goesOn("at first")
	f.finish([]*redis.Client{primary.Client()})
	for p := range failoverPartitions {
		f.lose(primary, replica, p, http.StatusAccepted)
	}
	primary.Kill()
	replica.Signal(syscall.SIGCONT)
	replica.AwaitMaster()
	f.gate.open()
	f.produce("after")
	f.goesOn("by the new primary")
	f.check()
	f.checkFollowers(replica.Client(), 0, 1, 2)
}

// TestMinReplicas_RejectsWithoutReplica stops the replica that redis.min_replicas requires. A request is rejected
// although it is stored, and a repetition with the same key stores nothing twice.
func TestMinReplicas_RejectsWithoutReplica(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.StartPair(t, redistest.FreePort(t))
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q, min_replicas: 1", primary.URL())})
	ws := d.connect(t, opsKey, "hub-1", "")
	post := testkit.Request{Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json", Body: plain}
	accepted := func(key string) []string {
		t.Helper()
		var answer struct{ Data struct{ IDs []string } }
		again := post
		again.Header = map[string]string{"Idempotency-Key": key}
		testkit.Eventually(t, "the replica to have it", func() error {
			r := d.Do(t, again)
			if r.Status != http.StatusAccepted {
				return fmt.Errorf("answered %d %s", r.Status, r.Body)
			}
			return json.Unmarshal([]byte(r.Body), &answer)
		})
		return answer.Data.IDs
	}
	ids := accepted("first")
	replica.Signal(syscall.SIGSTOP)
	wantError(t, d.Do(t, post), "503.not-ready", "", "Send an Idempotency-Key")
	post.Header = map[string]string{"Idempotency-Key": "short"}
	for range 2 {
		wantError(t, d.Do(t, post), "503.not-ready", "", "repeat the request with the same Idempotency-Key")
	}
	replica.Signal(syscall.SIGCONT)
	ids = append(ids, accepted("short")...)
	stored, _ := logged(t, redisAt(t, primary.Socket))
	if len(stored) != 3 || !slices.Equal(ids, []string{stored[0], stored[2]}) {
		t.Errorf("the log holds %v, and accepted were %v; stored only was one", stored, ids)
	}
	if got := objectIDs(ws.wait(t, 3)); !slices.Equal(got, stored) {
		t.Errorf("the websocket got %v, want %v", got, stored)
	}
}
