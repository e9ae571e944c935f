//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	notifications = 2000
	patience      = 90 * time.Second
	key           = "ops-key-0123456789abcdef"
)

// TestDaemon_BrokerOutage publishes 2,000 notifications through the daemon to a NATS server that is killed and
// restarted. The stream must contain the same bytes as the output of a sink of type file.
func TestDaemon_BrokerOutage(t *testing.T) {
	if os.Getenv("HUBRELAY_TEST_BROKERS") == "" {
		t.Skip("tests with real brokers are disabled: `make test-brokers` sets HUBRELAY_TEST_BROKERS")
	}
	dir, err := os.MkdirTemp("", "brokers")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := testkit.Build(dir, ".", "../hubrelay"); err != nil {
		t.Fatal(err)
	}
	port := redistest.FreePort(t)
	server := testkit.Command{
		Path: "nats-server", Dir: dir, Group: true,
		Args: []string{"-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(dir, "nats")},
	}
	first := testkit.Start(t, server)
	url := "nats://127.0.0.1:" + port
	js := connect(t, url)
	config := fmt.Sprintf(`server: {listen: "127.0.0.1:0"}
%s
redis: {data_dir: data}
auth: {keys: [{name: ops, key: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}]}
sinks:
  written: {type: file, path: %s, metadata: false}
  events:
    type: plugin
    command: [./hubrelay-brokers]
    retry: {schedule: [200ms, 500ms, 1s, 1s, 1s, 2s, 2s, 5s, 5s, 5s, 5s, 5s]}
    config: {broker: nats, addresses: ["127.0.0.1:%s"]}
`, testkit.HealthConfig, key, filepath.Join(dir, "written.jsonl"), port)
	if err := os.WriteFile(filepath.Join(dir, "hubrelay.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := testkit.Serve(t, testkit.Command{
		Path: filepath.Join(dir, "hubrelay"), Dir: dir, Group: true,
		Args: []string{"serve", "-c", filepath.Join(dir, "hubrelay.yaml")},
	})
	d.Key = key
	testkit.Eventually(t, "the daemon to be ready", d.Ready(http.StatusOK))

	killed := make(chan struct{})
	go func() {
		defer close(killed)
		if err := testkit.Poll(func() error { return holds(js, notifications/4) }); err != nil {
			t.Errorf("the first quarter was not published: %v", err)
		}
		first.Kill()
	}()
	for i := 0; i < notifications; i += 100 {
		if i == notifications/2 {
			<-killed // the second half is published during the outage
		}
		publish(t, d, i, 100)
	}
	testkit.WaitFor(t, "the sink fails", func() bool {
		return d.Metric(t, `hubrelay_sink_attempts_total{result="other",sink="events"}`) > 0
	})
	testkit.Start(t, server)
	testkit.Eventually(t, "all to be published", func() error { return holds(connect(t, url), notifications) })
	compare(t, read(t, connect(t, url)), filepath.Join(dir, "written.jsonl"))
}

func publish(t *testing.T, d *testkit.Daemon, from, n int) {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"topic":"container.created","object":{"id":"%d","text":"ü \u001f 12345678901234567890"},`+
			`"context":{"hub_id":"h","account_id":"a"}}`+"\n", from+i)
	}
	d.Publish(t, "h", "application/x-ndjson", b.String(), nil)
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
			t.Fatalf("got %d of %d messages", len(list), info.State.Msgs)
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
			t.Fatalf("the stream lacks the line %s", line)
		}
		repeats += n - 1
		delete(times, strings.TrimSuffix(line, "\n"))
	}
	if len(times) > 0 {
		t.Errorf("got %d messages that were not published", len(times))
	}
	t.Logf("%d events, %d repeats", notifications, repeats)
}
