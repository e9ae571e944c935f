package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestStorage_StopsPublishingBeforeItIsFull publishes until the embedded Redis is almost full. Deliveries still have
// room, and free the space for the next notifications.
func TestStorage_StopsPublishingBeforeItIsFull(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		<-proceed
		w.WriteHeader(http.StatusNoContent)
	})
	release := sync.OnceFunc(func() { close(proceed) })
	t.Cleanup(release) // before the receiver waits for its handlers
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: `max_memory: 16MiB, retention: {max_bytes: 1MiB}`,
		sinks: webhookSink("hook", hooks.url+"/", ""),
	}.renderYAML())
	d := serveFile(t, file)
	body := fmt.Sprintf(`{"topic":"job.created","context":{"hub_id":"hub-1"},"pad":%q}`, strings.Repeat("x", 100_000))
	publish := func() testkit.Reply {
		return d.Do(t, testkit.Request{
			Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json", Body: body,
		})
	}
	accepted := 0
	var refused testkit.Reply
	for ; accepted < 1000; accepted++ {
		if refused = publish(); refused.Status != http.StatusAccepted {
			break
		}
	}
	if refused.Status != http.StatusServiceUnavailable || !strings.Contains(refused.Body, "503.storage-full") ||
		!strings.Contains(refused.Body, "redis.max_memory") {
		t.Errorf("after %d events: %d %s", accepted, refused.Status, refused.Body)
	}
	// Trimming the log may make room again.
	testkit.Eventually(t, "the monitor to report it", func() error {
		full := d.Metric(t, "hubrelay_storage_full") == 1
		if r, err := d.GetHealth(t.Context(), "/readyz"); err != nil || r.Status != 503 || !full ||
			!strings.Contains(r.Body, "storage") {
			if publish().Status == http.StatusAccepted {
				accepted++
			}
			return fmt.Errorf("full is %t; readyz: %+v, %w", full, r, err)
		}
		return nil
	})
	testkit.Eventually(t, "the error in the log", d.Err.Contains(`"msg":"storage is full`))
	// An entry of the inbox waits. Redis rejects it if publishing has passed the limit of the relay, which measures the
	// memory once per second.
	expected := accepted + 1
	store := redisAt(t, filepath.Join(dir, "hubrelay-data", "redis.sock"))
	if err := store.XAdd(t.Context(), &redis.XAddArgs{
		Stream: "hubrelay:inbox", Values: []string{"data", `{"topic":"job.created","context":{"hub_id":"hub-1"}}`},
	}).Err(); err == nil {
		expected++
	} else if !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatal(err)
	}

	release()
	testkit.Eventually(t, "room again", func() error { // replies of Redis can fill it for a moment
		if r := publish(); r.Status != http.StatusAccepted {
			return fmt.Errorf("after the deliveries: %d %s", r.Status, r.Body)
		}
		return nil
	})
	testkit.Eventually(t, "all deliveries", func() error {
		if n := hooks.counts(); len(n) < expected {
			return fmt.Errorf("%d of %d", len(n), expected)
		}
		return nil
	})
}

// reserveUsed matches the error of a Redis in which the part of the memory is used that quiet accounts may use.
var reserveUsed = regexp.MustCompile(`the storage of the relay is full \((9[5-9]|100)%\)`)

// TestStorage_KeepsRoomForOthers floods a small Redis whose sink does not deliver, until publishing stops. An account that has
// stored little can still publish, whether an API key or a source floods.
func TestStorage_KeepsRoomForOthers(t *testing.T) {
	t.Parallel()
	quiet := "Zm9yIHRoZSBxdWlldCBhY2NvdW50"
	start := func(t *testing.T, more string) *daemon {
		t.Helper()
		return serveFile(t, writeFile(t, tempDir(t), "hubrelay.yaml", daemonConfig{
			redis: `max_memory: 16MiB, retention: {max_bytes: 1MiB}`,
			sinks: webhookSink("hook", "http://127.0.0.1:1/", ""),
			keys: fmt.Sprintf("    - {name: quiet, key: %s, account_id: quiet, hubs: [hub-2], "+
				"capabilities: [notifications-publish]}\n", quiet) + more,
		}.renderYAML()))
	}
	publish := func(t *testing.T, d *daemon, key, hub string, size int) testkit.Reply {
		t.Helper()
		return d.Do(t, testkit.Request{
			Method: "POST", Key: key, Hub: hub, ContentType: "application/json",
			Body: fmt.Sprintf(`{"topic":"job.created","pad":%q}`, strings.Repeat("x", size)),
		})
	}
	const size = 20_000
	check := func(t *testing.T, d *daemon, minUsed float64, flood func() (stop bool)) {
		t.Helper()
		// The quiet account is known already, and would be the loudest one if the flood did not count.
		for range 50 {
			if r := publish(t, d, quiet, "hub-2", 100); r.Status != http.StatusAccepted {
				t.Fatalf("before the flood, the quiet account got %d %s", r.Status, r.Body)
			}
		}
		testkit.Eventually(t, "the flood to stop", func() error {
			for range 1000 {
				if flood() {
					break
				}
			}
			if used := d.Metric(t, "hubrelay_storage_used_ratio"); used < minUsed {
				return fmt.Errorf("%.2f of the storage are used, want %.2f", used, minUsed)
			}
			return nil
		})
		for range 5 {
			testkit.Eventually(t, "the quiet account to publish", func() error {
				r := publish(t, d, quiet, "hub-2", 1)
				if r.Status == http.StatusAccepted {
					return nil
				}
				// The buffers of a large command can take the reserve of this small Redis until the next measurement.
				if !reserveUsed.MatchString(r.Body) {
					t.Fatalf("the quiet account got %d %s", r.Status, r.Body)
				}
				return errors.New(r.Body)
			})
		}
	}

	t.Run("key", func(t *testing.T) {
		t.Parallel()
		d := start(t, "")
		check(t, d, 0.9, func() bool {
			r := publish(t, d, opsKey, "hub-1", size)
			isFull := r.Status == http.StatusServiceUnavailable && strings.Contains(r.Body, "503.storage-full")
			if !isFull && r.Status != http.StatusAccepted {
				t.Fatalf("the flood got %d %s", r.Status, r.Body)
			}
			return isFull
		})
	})
	t.Run("source", func(t *testing.T) {
		t.Parallel()
		up := serve(t, daemonConfig{redis: `url: "memory:"`})
		d := start(t, upstreamSource("http://"+up.Public, ""))
		testkit.Eventually(t, "the source", d.connectedSource(t))
		// A source stores up to 1 MiB at once. It waits until there is enough room.
		check(t, d, 0.8, func() bool {
			r := publish(t, up, opsKey, "hub-1", size)
			if r.Status != http.StatusAccepted {
				t.Fatalf("the flood got %d %s", r.Status, r.Body)
			}
			return false
		})
	})
}

// TestStorage_LargeInbox fills Redis through the inbox, whose producers the relay cannot limit. The entries move to the log and to the
// quarantine nevertheless, so publishing continues.
func TestStorage_LargeInbox(t *testing.T) {
	t.Parallel()
	const size = 200_000
	dir := tempDir(t)
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", daemonConfig{
		redis: `max_memory: 64MiB, retention: {max_bytes: 16MiB}`, // and 4 MiB for the quarantine
	}.renderYAML()))
	event := func(size int) string {
		return fmt.Sprintf(`{"topic":"job.created","context":{"hub_id":"hub-1"},"pad":%q}`, strings.Repeat("x", size))
	}
	publish := func(when string, size int) {
		t.Helper()
		testkit.Eventually(t, "publishing "+when, func() error {
			r := d.Do(t, testkit.Request{
				Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json", Body: event(size),
			})
			if r.Status != http.StatusAccepted {
				return fmt.Errorf("%d %s", r.Status, r.Body)
			}
			return nil
		})
	}
	for range 16 << 20 / size {
		publish("before the flood", size)
	}
	store := redisAt(t, filepath.Join(dir, "hubrelay-data", "redis.sock"))
	moved := make(map[string]int)
	for _, c := range []struct{ result, data string }{
		{"stored", event(size)}, {"stored", event(size)}, {"quarantined", strings.Repeat("y", size)},
	} {
		stored := 0
		for err := error(nil); !isOutOfMemory(err); {
			if stored > 5000 {
				t.Fatalf("%s: the inbox does not fill redis", c.result)
			}
			err = store.XAdd(t.Context(), &redis.XAddArgs{Stream: "hubrelay:inbox", Values: []string{"data", c.data}}).Err()
			if err == nil {
				stored++
			} else if !isOutOfMemory(err) {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, c.result+": the inbox to be empty", func() error {
			n, err := store.XLen(t.Context(), "hubrelay:inbox").Result()
			if err == nil && n > 0 {
				err = fmt.Errorf("%d of %d entries are there", n, stored)
			}
			return err
		})
		publish("after entries were "+c.result, 1)
		moved[c.result] += stored
		if n, want := d.Metric(t, `hubrelay_inbox_entries_total{result="`+c.result+`"}`), moved[c.result]; n != float64(want) {
			t.Errorf("%v entries were %s, want %d", n, c.result, want)
		}
	}
}

func isOutOfMemory(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "OOM") }
