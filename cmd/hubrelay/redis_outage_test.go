package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// TestRedisAway kills Redis while the daemon runs, and starts it again.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hooks := receive(t, nil)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/",
		"")})
	conn, refused := d.upgrade(t, "?token="+d.Token(t, opsKey, "hub-1"), nil)
	if conn == nil {
		t.Fatal(refused)
	}
	pongs := make(chan string, 1)
	conn.SetPongHandler(func(data string) error { pongs <- data; return nil })
	ws := listenOn(conn)
	before := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	testkit.Eventually(t, "the webhooks before", hooks.receivedAll(before))

	server.Kill()
	post := testkit.Request{
		Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/x-ndjson",
		Body: lines(5),
	}
	wantError(t, d.Do(t, post), "503.not-ready", "", "Idempotency-Key")
	post.Header = map[string]string{"Idempotency-Key": "away"}
	wantError(t, d.Do(t, post), "503.not-ready", "", "same Idempotency-Key")
	wantError(t, d.Do(t, testkit.Request{Method: "GET", Key: opsKey, Hub: "hub-1"}), "503.not-ready", "", "")
	testkit.Eventually(t, "readyz to say no", d.Ready(http.StatusServiceUnavailable))
	if err := conn.WriteControl(websocket.PingMessage, []byte("there?"), time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-pongs:
	case <-time.After(patience):
		t.Fatal("the websocket does not respond while Redis is away")
	}

	server.Restart()
	testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
	after := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), post.Header) // the repeated request is stored once
	if again := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), post.Header); !slices.Equal(after, again) {
		t.Errorf("the repeat was answered %v, want %v", again, after)
	}
	after = append(after, d.Publish(t, "hub-1", "application/json", plain, nil)...)
	all := append(slices.Clone(before), after...)
	if got := objectIDs(ws.wait(t, len(all))); !slices.Equal(got, all) {
		t.Errorf("the websocket got %v, want %v", got, all)
	}
	testkit.Eventually(t, "the webhooks after", hooks.receivedAll(all))
	if ids, _ := logged(t, redisAt(t, server.Socket)); !slices.Equal(ids, all) {
		t.Errorf("the log holds %v, want %v and no rejected entries", ids, all)
	}
	testkit.Eventually(t, "the end of the outage in the log", d.Err.Contains("redis is available again"))
	for line := range strings.Lines(d.Err.String()) {
		if strings.Contains(line, "redis is not available: ") && !strings.Contains(line, `"msg":"redis is `) {
			t.Errorf("got a line for a single failure during the outage: %s", line)
		}
	}
}

// TestRedisRejectsCredentials changes the password of Redis while the node runs, and changes it back.
func TestRedisRejectsCredentials(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())})
	ws := d.connect(t, opsKey, "hub-1", "")
	before := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	operator := redisAt(t, server.Socket).Conn()
	t.Cleanup(func() { _ = operator.Close() })
	pipe := operator.Pipeline()
	pipe.ConfigSet(t.Context(), "requirepass", "another")
	pipe.Do(t.Context(), "AUTH", "another")
	pipe.ClientKillByFilter(t.Context(), "SKIPME", "yes")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "readyz to name the reason", func() error {
		r, err := d.GetHealth(t.Context(), "/readyz")
		if err == nil && !strings.Contains(r.Body, "redis rejects the user or the password; correct them") {
			err = errors.New(r.Body)
		}
		return err
	})
	for range 3 {
		wantError(t, d.Do(t, testkit.Request{
			Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/x-ndjson", Body: lines(5),
		}), "503.not-ready", "", "Idempotency-Key")
	}
	if err := operator.ConfigSet(t.Context(), "requirepass", "").Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
	all := append(slices.Clone(before), d.Publish(t, "hub-1", "application/x-ndjson", lines(5), nil)...)
	if got := objectIDs(ws.wait(t, len(all))); !slices.Equal(got, all) {
		t.Errorf("the websocket got %v, want %v", got, all)
	}
	for line := range strings.Lines(d.Err.String()) {
		if strings.Contains(line, `"level":"ERROR"`) && !strings.Contains(line, `"msg":"redis is `) {
			t.Errorf("got a line for a single failure: %s", line)
		}
	}
}

// TestRedisLosesData lets Redis lose all data: it restarts without a file, and is flushed.
func TestRedisLosesData(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	hooks := receive(t, nil)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/",
		"")})
	ws := d.connect(t, opsKey, "hub-1", "")
	for _, loss := range []func(){
		func() {},
		server.Restart,
		func() { redisAt(t, server.Socket).FlushAll(t.Context()) },
	} {
		loss()
		testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
		ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(30), nil)
		testkit.Eventually(t, "the websocket to continue", ws.receivedAll(ids))
		testkit.Eventually(t, "the webhook to continue", hooks.acceptedAll("/", ids))
	}
	testkit.Eventually(t, "a word about each loss", func() error {
		frames, _ := ws.snapshot()
		told := 0
		for _, f := range frames {
			if strings.Contains(f, `"hubrelay.resync"`) {
				told++
			}
		}
		if len(frames)-told != 90 || told < 2 {
			return fmt.Errorf("the websocket got %d events and %d resyncs, want 90 and two", len(frames)-told,
				told)
		}
		return nil
	})
}

// TestRedisHangs stops Redis without closing a connection.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hooks := receive(t, nil)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), sinks: webhookSink("hook", hooks.url+"/",
		"")})
	ws := d.connect(t, opsKey, "hub-1", "")
	server.Signal(syscall.SIGSTOP)
	r := d.Do(t, testkit.Request{
		Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json",
		Body: plain,
	})
	wantError(t, r, "503.not-ready", "", "Idempotency-Key")
	testkit.Eventually(t, "readyz to say no", d.Ready(http.StatusServiceUnavailable))
	server.Signal(syscall.SIGCONT)
	testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(5), nil)
	testkit.Eventually(t, "the websocket to continue", ws.receivedAll(ids))
	testkit.Eventually(t, "the webhook to continue", hooks.acceptedAll("/", ids))
}

// TestRedisFull fills Redis to its limit. Accepted notifications arrive, the others are rejected and not stored in
// part.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "16mb")
	store := redisAt(t, server.Socket)
	hooks := receive(t, nil)
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q, retention: {max_bytes: 1GiB}", server.URL()), // never trimmed
		sinks: webhookSink("hook", hooks.url+"/", ""),
	})
	ws := d.connect(t, opsKey, "hub-1", "")
	large := fmt.Sprintf(`{"topic":"job.created","context":{"padding":%q}}`+"\n", strings.Repeat("x", 100_000))
	post := testkit.Request{
		Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/x-ndjson",
		Body: large + large,
	}
	var refused testkit.Reply
	for range 500 {
		if refused = d.Do(t, post); refused.Status != http.StatusAccepted {
			break
		}
	}
	wantError(t, refused, "503.storage-full", "", "redis.max_memory")
	if err := store.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
	d.Publish(t, "hub-1", "application/json", plain, nil)
	ids, _ := logged(t, store)
	if len(ids)%2 != 1 {
		t.Errorf("%d are stored, want pairs and one", len(ids))
	}
	testkit.Eventually(t, "every webhook", hooks.acceptedAll("/", ids))
	if got := objectIDs(ws.wait(t, len(ids))); !slices.Equal(got, ids) {
		t.Errorf("the websocket got %d that are not the %d of the log", len(got), len(ids))
	}
}

// TestRedisFull_DeadLetters publishes twice the memory of Redis while a destination rejects everything. The oldest
// dead letters are dropped, so publishing continues, and another sink gets everything that was accepted.
func TestRedisFull_DeadLetters(t *testing.T) {
	t.Parallel()
	const maxMemory, size = 24 << 20, 100_000
	server := redistest.Start(t, "--maxmemory", strconv.Itoa(maxMemory))
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		status := http.StatusOK
		if h.path == "/rejecting" {
			status = http.StatusBadRequest
		}
		w.WriteHeader(status)
	})
	d := serve(t, daemonConfig{
		redis: fmt.Sprintf("url: %q, retention: {max_bytes: 2MiB}", server.URL()),
		sinks: webhookSink("rejecting", hooks.url+"/rejecting", "") + webhookSink("good", hooks.url+"/good", ""),
	})
	large := fmt.Sprintf(`{"topic":"job.created","context":{"padding":%q}}`, strings.Repeat("x", size))
	var ids []string
	for len(ids) < 2*maxMemory/size {
		r := d.Do(t, testkit.Request{Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json", Body: large})
		if r.Status == http.StatusServiceUnavailable || r.Status == http.StatusTooManyRequests { // rejected requests count too
			seconds, err := strconv.Atoi(r.Header.Get("Retry-After"))
			if err != nil {
				t.Fatalf("got %d without Retry-After: %s", r.Status, r.Body)
			}
			time.Sleep(time.Duration(seconds) * time.Second)
			continue
		}
		var response struct{ Data struct{ IDs []string } }
		if err := json.Unmarshal([]byte(r.Body), &response); r.Status != http.StatusAccepted || err != nil {
			t.Fatalf("got %d %s, want 202 or 503", r.Status, r.Body)
		}
		ids = append(ids, response.Data.IDs...)
	}
	testkit.Eventually(t, "the good sink to get everything", hooks.acceptedAll("/good", ids))
	testkit.Eventually(t, "the dropped dead letters in the log", d.Err.Contains(`"reason":"memory of redis"`))
}

// producer publishes notifications one at a time until it is stopped, and records the accepted ones.
type producer struct {
	stop chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	accepted []string
	refused  int
}

func produce(t *testing.T, d *daemon) *producer {
	t.Helper()
	p := &producer{stop: make(chan struct{})}
	post := testkit.Request{Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: "application/json", Body: plain}
	p.done.Go(func() {
		for {
			select {
			case <-p.stop:
				return
			default:
			}
			r, err := d.Try(context.Background(), post)
			if err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			p.mu.Lock()
			switch r.Status {
			case http.StatusAccepted:
				p.accepted = append(p.accepted, strings.Split(r.Body, `"`)[5])
			case http.StatusServiceUnavailable:
				p.refused++
			default:
				t.Errorf("publish was answered %d %s", r.Status, r.Body)
			}
			p.mu.Unlock()
		}
	})
	t.Cleanup(p.end)
	return p
}

func (p *producer) end() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.done.Wait()
}

func (p *producer) count() (accepted, refused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.accepted), p.refused
}

// more returns a probe that waits for n more accepted notifications.
func (p *producer) more(n int) func() error {
	before, _ := p.count()
	return func() error {
		if now, _ := p.count(); now < before+n {
			return fmt.Errorf("%d more were accepted, want %d", now-before, n)
		}
		return nil
	}
}

// redisPID returns the process in the pid file of a data directory, or 0.
func redisPID(data string) int {
	text, err := os.ReadFile(filepath.Join(data, "redis.pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// hasEnded reports whether a process has ended. A zombie has ended.
func hasEnded(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// serverPID returns the process id of a Redis.
func serverPID(t *testing.T, c *redis.Client) int {
	t.Helper()
	info, err := c.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "process_id:")
	pid := 0
	if _, err := fmt.Sscanf(rest, "%d", &pid); err != nil || pid <= 1 {
		t.Fatalf("redis-server does not tell its process id: %v", err)
	}
	return pid
}

// TestEmbeddedRedisKilled kills the embedded redis-server during publishing.
func TestEmbeddedRedisKilled(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	data := filepath.Join(dir, "data")
	hooks := receive(t, nil)
	text := daemonConfig{redis: fmt.Sprintf("data_dir: %q", data), sinks: webhookSink("hook", hooks.url+"/", "")}
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", text.renderYAML()))
	store := redisAt(t, filepath.Join(data, "redis.sock"))
	pid := serverPID(t, store)
	// With this, accepted notifications survive any kill.
	if err := store.ConfigSet(t.Context(), "appendfsync", "always").Err(); err != nil {
		t.Fatal(err)
	}
	ws := d.connect(t, opsKey, "hub-1", "")
	p := produce(t, d)
	testkit.Eventually(t, "a few events", p.more(50))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "events after the kill", func() error {
		if _, refused := p.count(); refused == 0 {
			return errors.New("got no rejection, so Redis was always available")
		}
		return nil
	})
	testkit.Eventually(t, "a few events more", p.more(50))
	p.end()
	if now := serverPID(t, store); now == pid {
		t.Error("redis-server was not started again")
	}
	testkit.Eventually(t, "all that was accepted, at the websocket", ws.receivedAll(p.accepted))
	testkit.Eventually(t, "all that was accepted, at the webhook", hooks.receivedAll(p.accepted))
	testkit.Eventually(t, "readyz to say yes", d.Ready(http.StatusOK))
	frames, _ := ws.snapshot()
	ids, _ := logged(t, store)
	if got := objectIDs(frames); !slices.Equal(got, ids) {
		t.Errorf("the websocket got %d frames that are not the %d of the log", len(got), len(ids))
	}
}

// TestDaemonKilled kills a daemon with scheduled retries and attempts in progress, and starts another with its data.
func TestDaemonKilled(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	data := filepath.Join(dir, "data")
	broken, hang := make(chan struct{}), make(chan struct{})
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		select {
		case <-broken: // from now on attempts succeed
			w.WriteHeader(http.StatusNoContent)
			return
		default:
		}
		if h.path == "/hangs" {
			<-hang
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	release := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(release)
	text := daemonConfig{
		redis: fmt.Sprintf("data_dir: %q", data),
		sinks: webhookSink("refusing", hooks.url+"/refuses", "") + webhookSink("hanging", hooks.url+"/hangs",
			", concurrency: 2"),
	}
	file := writeFile(t, dir, "hubrelay.yaml", text.renderYAML())
	first := serveFile(t, file)
	store := redisAt(t, filepath.Join(data, "redis.sock"))
	pid := serverPID(t, store)
	ids := first.Publish(t, "hub-1", "application/x-ndjson", lines(20), nil)
	testkit.Eventually(t, "many to be parked by one sink and some to hang in the other", func() error {
		parked, err := store.ZCard(t.Context(), "hubrelay:retry:refusing").Result()
		if hanging := len(hooks.of("/hangs")); err == nil && (parked < 10 || hanging < 2) {
			err = fmt.Errorf("%d are parked, %d hang", parked, hanging)
		}
		return err
	})
	first.Kill()
	release()
	if hasEnded(pid) {
		t.Fatal("redis-server has ended with the daemon that was killed")
	}
	close(broken)

	second := serveFile(t, file)
	if now := serverPID(t, store); now != pid {
		t.Errorf("the next daemon has the redis-server %d, want %d", now, pid)
	}
	_, errOut, code := call(t, nil, "", "serve", "-c", file)
	if want := fmt.Sprintf("is in use by process %d", second.Cmd.Process.Pid); code != 1 ||
		!strings.Contains(errOut, want) ||
		!strings.Contains(errOut, data) {
		t.Errorf("a second daemon ended with %d, want 1 and %q:\n%s", code, want, errOut)
	}
	testkit.Eventually(t, "deliveries in progress, in the queue and scheduled", func() error {
		for _, path := range []string{"/refuses", "/hangs"} {
			if err := hooks.acceptedAll(path, ids)(); err != nil {
				return err
			}
		}
		left, err := store.ZCard(t.Context(), "hubrelay:retry:refusing").Result()
		if err == nil && left > 0 {
			err = fmt.Errorf("%d are parked", left)
		}
		return err
	})
	for _, h := range hooks.of("/refuses") {
		if h.bad != nil {
			t.Errorf("attempt %d of %s: %v", h.attempt, h.id, h.bad)
		}
	}
	second.Stop(t)
	testkit.Eventually(t, "redis-server to end with the daemon", func() error {
		if !hasEnded(pid) {
			return fmt.Errorf("process %d is there", pid)
		}
		return nil
	})
	third := serveFile(t, file)
	if kept, _ := logged(t, redisAt(t, filepath.Join(data, "redis.sock"))); !slices.Equal(kept, ids) {
		t.Errorf("after a restart the log holds %v, want %v", kept, ids)
	}
	third.Stop(t)
}
