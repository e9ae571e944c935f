package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	upstreamKilled  = 20   // number of kills of the reader
	upstreamNumbers = 5000 // number of notifications published during that time
)

// upstreamSource returns the configuration of a relay that reads another one.
func upstreamSource(url, more string) string {
	return fmt.Sprintf("sources: {upstream: {type: hub, url: %q, key: %s%s}}\n", url, opsKey, more)
}

// numberedNote returns a notification of a hub with a number.
func numberedNote(hub string, n int) string {
	return fmt.Sprintf(`{"topic":"container.created","object":{"id":"%s/%d"},"context":{"hub_id":"%s"}}`, hub, n, hub)
}

// publishNumbers publishes the numbers of a hub to the current upstream, in batches of random size, until ctx ends or
// all are accepted. It repeats uncertain requests with the same Idempotency-Key.
func publishNumbers(ctx context.Context, current *atomic.Pointer[daemon], hub string, count, size int,
	every time.Duration,
) error {
	return publishNumbersFrom(ctx, current, hub, 1, count, size, every)
}

// publishNumbersFrom publishes the numbers from first to end.
func publishNumbersFrom(ctx context.Context, current *atomic.Pointer[daemon], hub string, first, end, size int,
	every time.Duration,
) error {
	for first <= end {
		last := min(first+rand.IntN(size), end)
		var body strings.Builder
		for n := first; n <= last; n++ {
			body.WriteString(numberedNote(hub, n) + "\n")
		}
		for {
			r, err := current.Load().Try(ctx, testkit.Request{
				Method: "POST", Key: opsKey, Hub: hub, ContentType: "application/x-ndjson", Body: body.String(),
				Header: map[string]string{"Idempotency-Key": fmt.Sprint(hub, "-", first)},
			})
			if err == nil && r.Status == 202 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("stopped at %d of %s: %w, %d %s", first, hub, ctx.Err(), r.Status, r.Body)
			case <-time.After(20 * time.Millisecond):
			}
		}
		first = last + 1
		time.Sleep(every)
	}
	return nil
}

// logKeys returns the keys of all partitions of the log. Each exists after something was stored in it.
func logKeys(t *testing.T, store redis.UniversalClient) (keys []string) {
	t.Helper()
	cluster, ok := store.(*redis.ClusterClient)
	if !ok {
		return store.Keys(t.Context(), "hubrelay:log:*").Val()
	}
	var mu sync.Mutex
	err := cluster.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		list, err := c.Keys(ctx, "hubrelay:log:*").Result()
		mu.Lock()
		keys = append(keys, list...)
		mu.Unlock()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// logEntries yields the entries of a partition of the log. It reads pages, because the log of a flood is too large for
// one reply within the time limit of the client.
func logEntries(t *testing.T, store redis.UniversalClient, key string) iter.Seq[redis.XMessage] {
	t.Helper()
	return func(yield func(redis.XMessage) bool) {
		const pageLength = 500
		for start := "-"; ; {
			page, err := store.XRangeN(t.Context(), key, start, "+", pageLength).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				if !yield(e) {
					return
				}
			}
			if len(page) < pageLength {
				return
			}
			start = "(" + page[len(page)-1].ID
		}
	}
}

// numbersIn returns the numbers of each hub in the order of the log.
func numbersIn(t *testing.T, store redis.UniversalClient) map[string][]int {
	t.Helper()
	found := make(map[string][]int)
	for _, key := range logKeys(t, store) {
		for e := range logEntries(t, store, key) {
			hub, n, err := numberOf(objectID(fmt.Sprint(e.Values["data"])))
			if err != nil {
				t.Fatal(err)
			}
			found[hub] = append(found[hub], n)
		}
	}
	return found
}

// allNumbers returns a probe: every hub has reached the number.
func allNumbers(t *testing.T, store redis.UniversalClient, hubs []string, count int) func() error {
	return func() error {
		found := numbersIn(t, store)
		for _, hub := range hubs {
			if len(found[hub]) < count {
				return fmt.Errorf("%s has %d of %d", hub, len(found[hub]), count)
			}
		}
		return nil
	}
}

func checkNumbers(t *testing.T, store redis.UniversalClient, hubs []string, count int) {
	t.Helper()
	testkit.Eventually(t, "all that was published upstream", allNumbers(t, store, hubs, count))
	found := numbersIn(t, store)
	for _, hub := range hubs {
		if err := checkSequence(found[hub], 1, count); err != nil {
			t.Errorf("%s: %v", hub, err)
		}
	}
}

// listedSource is a source in the output of sources list.
type listedSource struct {
	Name, State, Reason, Node           string
	Resumes                             bool
	Stored, Quarantined, Returned, Gaps int64
}

func (d *daemon) sources(t *testing.T) (list []listedSource) {
	t.Helper()
	out, errOut, code := call(t, nil, "", "sources", "list", "--json", "--admin", d.Admin)
	if code != 0 {
		t.Fatalf("%d %s", code, errOut)
	}
	for line := range strings.Lines(out) {
		var s listedSource
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}

func (d *daemon) connectedSource(t *testing.T) func() error {
	return func() error {
		if list := d.sources(t); len(list) == 0 || list[0].State != "connected" {
			return fmt.Errorf("%+v", list)
		}
		return nil
	}
}

// TestSource copies the account stream of one relay to another. Clients and sinks of the second relay receive the
// same bytes, except for the list of relays.
func TestSource(t *testing.T) {
	t.Parallel()
	up := serve(t, daemonConfig{redis: `url: "memory:"`})
	hooks := receive(t, nil)
	down := serve(t, daemonConfig{
		redis: `url: "memory:"`, sinks: webhookSink("hook", hooks.url+"/", ""),
		keys: upstreamSource("http://"+up.Public, ""),
	})
	testkit.Eventually(t, "the source", down.connectedSource(t))
	client := down.connect(t, opsKey, "hub-7", "")
	up.Publish(t, "hub-7", "application/json",
		`{"topic":"job.created","object":{"id":"j1","n":1.50},"context":{"account_id":"a1","x":"é"},"own":[1]}`, nil)
	frame := client.wait(t, 1)[0]
	want := `{"topic":"job.created","object":{"id":"j1","state":"","error":"","n":1.50},"context":{"hub_id":"hub-7",` +
		`"account_id":"a1",` +
		`"environments":[],"dns_zones":[],"clusters":[],"containers":[],"x":"é"},"flags":null,"own":[1],` +
		`"hubrelay_via":["`
	if !strings.HasPrefix(frame, want) {
		t.Errorf("got %s\nwant %s…", frame, want)
	}
	testkit.Eventually(t, "the webhook", func() error {
		if n := len(hooks.counts()); n != 1 {
			return fmt.Errorf("%d came", n)
		}
		return nil
	})
	if s := down.sources(t)[0]; s.Stored != 1 || s.Gaps != 0 || !s.Resumes || s.Node == "" {
		t.Errorf("%+v", s)
	}
	if text, _, _ := call(t, nil, "", "sources", "list", "--admin", down.Admin); !strings.Contains(text, "connected") {
		t.Errorf("the list:\n%s", text)
	}
}

// TestLongSourceReaderIsKilled kills the reading relay 20 times while numbers are published in four hubs, and starts
// it again. Its log contains each number once and in the order of its hub.
func TestLongSourceReaderIsKilled(t *testing.T) {
	t.Parallel()
	var up atomic.Pointer[daemon]
	up.Store(serve(t, daemonConfig{redis: `url: "memory:"`}))
	dir := tempDir(t)
	data := filepath.Join(dir, "data")
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: fmt.Sprintf("data_dir: %q, partitions: 3", data), keys: upstreamSource("http://"+up.Load().Public, ""),
	}.renderYAML())
	hubs := []string{"hub-a", "hub-b", "hub-c", "hub-d"}
	begun := serveFile(t, file)
	testkit.Eventually(t, "the source", begun.connectedSource(t))
	var publishing sync.WaitGroup
	for _, hub := range hubs {
		publishing.Go(func() {
			if err := publishNumbers(t.Context(), &up, hub, upstreamNumbers/len(hubs), 5,
				15*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	random := rand.New(rand.NewPCG(fromEnv(t, "HUBRELAY_TEST_SEED", 1), 0))
	store := redisAt(t, filepath.Join(data, "redis.sock"))
	d := begun
	for range upstreamKilled {
		before := total(numbersIn(t, store))
		testkit.Eventually(t, "something new", func() error {
			if n := total(numbersIn(t, store)); n == before && before < upstreamNumbers {
				return fmt.Errorf("%d still", n)
			}
			return nil
		})
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		d.Kill()
		d = newDaemon(start(t, nil, "serve", "-c", file))
	}
	publishing.Wait()
	d.Await(t)
	checkNumbers(t, store, hubs, upstreamNumbers/len(hubs))
	s := d.sources(t)[0]
	if s.Stored != upstreamNumbers || s.Gaps != 0 || s.Quarantined != 0 {
		t.Errorf("%+v", s)
	}
	d.Stop(t)
}

// TestLongSourceStorm has two nodes that read one upstream over an unreliable connection, and kills the nodes, the
// upstream and each Redis. Finally, no number is missing or repeated.
func TestLongSourceStorm(t *testing.T) {
	t.Parallel()
	above, below := redistest.Start(t), redistest.Start(t)
	upper := daemonConfig{redis: fmt.Sprintf("url: %q, partitions: 2", above.URL())}
	var up atomic.Pointer[daemon]
	up.Store(serve(t, upper))
	way := testkit.StartProxy(t, func() string { return up.Load().Public })
	lower := daemonConfig{
		redis: fmt.Sprintf("url: %q, partitions: 2", below.URL()),
		keys:  upstreamSource("http://"+way.Addr(), ""),
	}
	nodes := []*daemon{serve(t, lower), serve(t, lower)}
	testkit.Eventually(t, "the source", nodes[0].connectedSource(t))
	hubs := []string{"hub-a", "hub-b", "hub-c"}
	const count = 1200
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var publishing sync.WaitGroup
	for _, hub := range hubs {
		publishing.Go(func() {
			if err := publishNumbers(ctx, &up, hub, count, 4, 15*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	random := rand.New(rand.NewPCG(fromEnv(t, "HUBRELAY_TEST_SEED", 1), 1))
	blows := map[string]int{}
	for blow := range 12 {
		time.Sleep(time.Duration(200+random.IntN(300)) * time.Millisecond)
		switch kind := blow % 4; kind {
		case 0:
			way.Cut()
			blows["cut"]++
		case 1:
			which := random.IntN(len(nodes))
			nodes[which].Kill()
			nodes[which] = serve(t, lower)
			blows["node"]++
		case 2:
			up.Load().Kill()
			up.Store(serve(t, upper))
			blows["upstream"]++
		case 3:
			which := []*redistest.Server{above, below}[random.IntN(2)]
			which.Kill()
			which.Restart()
			blows["redis"]++
		}
	}
	publishing.Wait()
	checkNumbers(t, redisAt(t, below.Socket), hubs, count)
	testkit.Eventually(t, "the figures", func() error {
		if s := nodes[0].sources(t)[0]; s.Stored != int64(count*len(hubs)) || s.Gaps != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	t.Logf("blows: %v", slices.Sorted(maps.Keys(blows)))
}

// TestSourcesChange removes a source from the configuration of a running daemon, and adds it again. Notifications of
// that time are not lost. Another hub starts at its end.
func TestSourcesChange(t *testing.T) {
	t.Parallel()
	up := serve(t, daemonConfig{redis: `url: "memory:"`})
	hooks := receive(t, nil)
	without := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("hook", hooks.url+"/", "")}
	with := without
	with.keys = upstreamSource("http://"+up.Public, ", hub_id: hub-1")
	file := writeFile(t, tempDir(t), "hubrelay.yaml", with.renderYAML())
	down := serveFile(t, file)
	testkit.Eventually(t, "the source", down.connectedSource(t))
	came := func(n int) func() error {
		return func() error {
			if got := len(hooks.counts()); got != n {
				return fmt.Errorf("%d came, want %d", got, n)
			}
			return nil
		}
	}
	up.Publish(t, "hub-1", "application/x-ndjson", lines(2), nil)
	up.Publish(t, "hub-2", "application/x-ndjson", lines(2), nil)
	testkit.Eventually(t, "what the hub has", came(2))

	down.reconfigure(t, file, without, 1)
	testkit.Eventually(t, "the source to leave", func() error {
		if list := down.sources(t); len(list) > 0 {
			return fmt.Errorf("%+v", list)
		}
		if page := down.Metrics(t); strings.Contains(page, `source="upstream"`) {
			return fmt.Errorf("metrics:\n%s", page)
		}
		return nil
	})
	up.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	down.reconfigure(t, file, with, 2)
	testkit.Eventually(t, "events of that time", came(5))
	if n := down.Metric(t, `hubrelay_source_connected{source="upstream"}`); n != 1 {
		t.Errorf("connected: %v", n)
	}

	with.keys = upstreamSource("http://"+up.Public, ", hub_id: hub-2")
	down.reconfigure(t, file, with, 3)
	testkit.Eventually(t, "the other hub", func() error {
		if s := down.sources(t); len(s) != 1 || s[0].State != "connected" || !s[0].Resumes {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	up.Publish(t, "hub-2", "application/x-ndjson", lines(1), nil)
	testkit.Eventually(t, "what the other hub has from now on", came(6))
}
