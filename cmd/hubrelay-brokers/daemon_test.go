//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

const (
	notifications = 2000
	patience      = 90 * time.Second
	key           = "ops-key-0123456789abcdef"
)

// TestDaemonOverAnOutage has the daemon itself publish 2,000 notifications to a NATS server that is killed among them and comes
// back, and compares what the stream holds, byte for byte, with what a sink of type file has written.
func TestDaemonOverAnOutage(t *testing.T) {
	if os.Getenv("HUBRELAY_TEST_BROKERS") == "" {
		t.Skip("real brokers are not wanted: `make test-brokers` sets HUBRELAY_TEST_BROKERS")
	}
	dir, err := os.MkdirTemp("", "brokers")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	build(t, dir)
	port := redistest.FreePort(t)
	server := []string{"nats-server", "-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(dir, "nats")}
	stop := run(t, dir, server...)
	url := "nats://127.0.0.1:" + port
	js := connect(t, url)
	listen, health := redistest.FreePort(t), redistest.FreePort(t)
	config := fmt.Sprintf(`server: {listen: "127.0.0.1:%s"}
health: {listen: "127.0.0.1:%s"}
redis: {data_dir: data}
auth: {keys: [{name: ops, key: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}]}
sinks:
  written: {type: file, path: %s}
  events:
    type: plugin
    command: [./hubrelay-brokers]
    retry: {schedule: [200ms, 500ms, 1s, 1s, 1s, 2s, 2s, 5s, 5s, 5s, 5s, 5s]}
    config: {broker: nats, addresses: ["127.0.0.1:%s"]}
`, listen, health, key, filepath.Join(dir, "written.jsonl"), port)
	if err := os.WriteFile(filepath.Join(dir, "hubrelay.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, filepath.Join(dir, "hubrelay"), "serve", "-c", filepath.Join(dir, "hubrelay.yaml"))
	testkit.Eventually(t, "the daemon to be ready", func() error { return get("http://127.0.0.1:" + health + "/readyz") })

	killed := make(chan struct{})
	go func() {
		defer close(killed)
		if err := testkit.Poll(func() error { return holds(js, notifications/4) }); err != nil {
			t.Errorf("a quarter is not published: %v", err)
		}
		stop()
	}()
	for i := 0; i < notifications; i += 100 {
		if i == notifications/2 {
			<-killed // so that something is left to fail
		}
		publish(t, "http://127.0.0.1:"+listen, i, 100)
	}
	testkit.Eventually(t, "the sink to fail", func() error {
		return metric("http://127.0.0.1:"+health, `hubrelay_delivery_failures_total{reason="other",sink="events"} 0`)
	})
	run(t, dir, server...)
	testkit.Eventually(t, "all to be published", func() error { return holds(connect(t, url), notifications) })
	compare(t, read(t, connect(t, url)), filepath.Join(dir, "written.jsonl"))
}

func build(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", dir+"/", ".", "../hubrelay")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}

// run starts a process that is killed with the test, or before by what it returns.
func run(t *testing.T, dir string, command ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	kill = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // the daemon ends its Redis and its plugins
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			kill()
		}
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("%s", text[max(0, len(text)-3000):])
		}
	})
	return kill
}

func get(url string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", answer.Status)
	}
	return nil
}

// metric wants a line of the metrics to be there no more.
func metric(health, line string) error {
	answer, err := http.Get(health + "/metrics")
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && bytes.Contains(text, []byte(line+"\n")) {
		err = fmt.Errorf("%s still", line)
	}
	return err
}

func publish(t *testing.T, server string, from, n int) {
	t.Helper()
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"topic":"container.created","object":{"id":"%d","text":"ü \u0000 12345678901234567890"},"context":{"hub_id":"h","account_id":"a"}}`+"\n", from+i)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server+"/v1/hubs/current/notifications", &b)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("X-Hub-Id", "h")
	r.Header.Set("Content-Type", "application/x-ndjson")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusAccepted {
		t.Fatalf("%s: %s", answer.Status, text)
	}
}

func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	var conn *nats.Conn
	testkit.Eventually(t, "NATS to answer", func() (err error) {
		conn, err = nats.Connect(url)
		return err
	})
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the stream", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "all", Subjects: []string{"hubrelay.>"}})
		return err
	})
	return js
}

func holds(js jetstream.JetStream, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, "all")
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx)
	if err == nil && info.State.Msgs < uint64(n) {
		err = fmt.Errorf("it holds %d", info.State.Msgs)
	}
	return err
}

func read(t *testing.T, js jetstream.JetStream) []string {
	t.Helper()
	consumer, err := js.OrderedConsumer(t.Context(), "all", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "all")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for began := time.Now(); uint64(len(list)) < info.State.Msgs; {
		if time.Since(began) > patience {
			t.Fatalf("%d of %d messages were read", len(list), info.State.Msgs)
		}
		batch, err := consumer.Fetch(500, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			list = append(list, string(m.Data()))
		}
	}
	return list
}

func compare(t *testing.T, published []string, path string) {
	t.Helper()
	var written []byte
	testkit.Eventually(t, "the file", func() (err error) {
		if written, err = os.ReadFile(path); err == nil && bytes.Count(written, []byte("\n")) < notifications {
			err = fmt.Errorf("it has %d lines", bytes.Count(written, []byte("\n")))
		}
		return err
	})
	times := map[string]int{}
	for _, payload := range published {
		times[payload]++
	}
	repeats := 0
	for line := range strings.Lines(string(written)) {
		n := times[strings.TrimSuffix(line, "\n")]
		if n == 0 {
			t.Fatalf("this is not in the stream: %s", line)
		}
		repeats += n - 1
		delete(times, strings.TrimSuffix(line, "\n"))
	}
	if len(times) > 0 {
		t.Errorf("%d messages of the stream are nothing that the daemon was given", len(times))
	}
	t.Logf("%d notifications, %d repeats", notifications, repeats)
}
