package examples

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/backbone/redistest"
)

const (
	notificationsPath = "/v1/hubs/current/notifications"
	patience          = 30 * time.Second
)

// daemon is a hubrelay that runs for the length of a test, on its embedded Redis.
type daemon struct {
	binary        string
	url, health   string
	key           string
	dir, dataDir  string
	webhookPort   string
	webhookSecret string
	pagePort      string
}

var configuration = template.Must(template.New("").Parse(`
server: {listen: "{{.Listen}}", allowed_origins: ["http://127.0.0.1:{{.PagePort}}"]}
health: {listen: "{{.Health}}"}
redis: {data_dir: "{{.DataDir}}"}
websocket: {compression: {enabled: true, min_size: 64, cpu: 16s}{{range .Websocket}}, {{.}}{{end}}}
auth:
  keys:
    - {name: examples, key: "{{.Key}}", account_id: account-1, hubs: ["*"], capabilities: [notifications-publish, containers-instances-migrate]}
migration: {driver: {command: ["builtin:directory"]}, inventory_file: inventory.yaml}
sinks:
  receiver:
    type: webhook
    topics: ["container.*"]
    url: "http://127.0.0.1:{{.WebhookPort}}/"
    secrets: ["{{.WebhookSecret}}"]
    allow_cidrs: [127.0.0.0/8]
    retry: {schedule: [1s, 1s, 1s]}
  watcher-go:
    type: plugin
    command: [./watcher]
    env: ["GORACE=atexit_sleep_ms=0"]
    topics: ["container.instance.*"]
    config: {report: watcher-go.jsonl}
  watcher-python:
    type: plugin
    command: ["{{.Python}}", "{{.Examples}}/plugin-python/plugin.py"]
    tls: false
    startup_timeout: 30s
    topics: ["container.instance.*"]
    config: {report: watcher-python.jsonl}
`))

const inventory = `
clusters: {production: {servers: {a: {path: %[1]s/a}, b: {path: %[1]s/b}}}}
containers: {shop: {hub_id: hub-moved, account_id: account-1, stateful: true, instances: {shop-1: {server_id: a}}}}
`

// startDaemon builds hubrelay, runs it until the test ends, and then demands that it stops in order. websocket are more
// settings of that section.
func startDaemon(t *testing.T, websocket ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "hubrelay") // t.TempDir is too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listen, health := freeAddress(t), freeAddress(t)
	d := &daemon{
		binary:        filepath.Join(dir, "hubrelay"),
		url:           "http://" + listen,
		health:        "http://" + health,
		key:           rand.Text(),
		dir:           dir,
		dataDir:       filepath.Join(dir, "data"),
		webhookPort:   redistest.FreePort(t),
		webhookSecret: "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()+rand.Text())),
		pagePort:      redistest.FreePort(t),
	}
	build(t, d.binary, "../cmd/hubrelay")
	build(t, filepath.Join(dir, "watcher"), "./plugin-go-instance-watch")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	err = configuration.Execute(&text, map[string]any{
		"Listen": listen, "Health": health, "DataDir": d.dataDir, "Key": d.key, "PagePort": d.pagePort,
		"WebhookPort": d.webhookPort, "WebhookSecret": d.webhookSecret,
		"Python": pythonWith(t, "grpc"), "Examples": here, "Websocket": websocket,
	})
	if err != nil {
		t.Fatal(err)
	}
	servers := filepath.Join(dir, "servers")
	for _, folder := range []string{"a/shop-1/volumes/data", "b"} {
		if err := os.MkdirAll(filepath.Join(servers, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "inventory.yaml"), fmt.Appendf(nil, inventory, servers), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "hubrelay.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, d.binary, "serve", "-c", file)
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("serve did not end with 0 after SIGTERM: %v\n%s", err, p.output())
		}
	})
	testkit.Eventually(t, "the daemon to be ready", func() error {
		if p.ended() {
			t.Fatalf("serve ended at once:\n%s", p.output())
		}
		resp, err := http.Get(d.health + "/readyz")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz answers %s", resp.Status)
		}
		return nil
	})
	return d
}

func build(t *testing.T, binary, folder string) {
	t.Helper()
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, folder)...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", folder, err, out)
	}
}

// env is the environment in which an example finds the daemon.
func (d *daemon) env(hub string) []string {
	return []string{
		"HUBRELAY_URL=" + d.url, "HUBRELAY_KEY=" + d.key, "HUBRELAY_HUB=" + hub,
		"HUBRELAY_SOCKET=" + filepath.Join(d.dataDir, "redis.sock"),
	}
}

// figure is what /metrics says.
func (d *daemon) figure(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get(d.health + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			figure, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return figure
		}
	}
	t.Fatalf("/metrics does not tell %s", name)
	return 0
}

// token asks for a token as any HTTP client would.
func (d *daemon) token(t *testing.T, hub string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, d.url+notificationsPath, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.key)
	req.Header.Set("X-Hub-Id", hub)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var body struct{ Data struct{ Token string } }
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || body.Data.Token == "" {
		t.Fatalf("the token request was answered %s without a token (%v)", resp.Status, err)
	}
	return body.Data.Token
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + redistest.FreePort(t)
}
