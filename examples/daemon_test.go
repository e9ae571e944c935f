package examples

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"text/template"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	notificationsPath = testkit.NotificationsPath
	patience          = testkit.Patience
)

// daemon is a hubrelay with embedded Redis that runs during a test.
type daemon struct {
	*testkit.Daemon
	url           string
	dir, dataDir  string
	webhookPort   string
	webhookSecret string
	pagePort      string
}

var configuration = template.Must(template.New("").Parse(`
server: {listen: "127.0.0.1:0", allowed_origins: ["http://127.0.0.1:{{.PagePort}}"]}
{{.HealthConfig}}
redis: {data_dir: "{{.DataDir}}"}
websocket: {compression: {enabled: true, min_size: 64, cpu: 16s}{{range .Websocket}}, {{.}}{{end}}}
auth:
  keys:
    - {name: examples, key: "{{.Key}}", account_id: account-1, hubs: ["*"],
       capabilities: [notifications-publish, containers-instances-migrate]}
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

// startDaemon runs hubrelay until the test ends and checks its exit code. websocket contains more settings of that
// section.
func startDaemon(t *testing.T, websocket ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "hubrelay") // the path of t.TempDir is too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &daemon{
		dir:           dir,
		dataDir:       filepath.Join(dir, "data"),
		webhookPort:   redistest.FreePort(t),
		webhookSecret: "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()+rand.Text())),
		pagePort:      redistest.FreePort(t),
	}
	if err := os.Symlink(programs.Path(t, "./plugin-go-instance-watch"), filepath.Join(dir, "watcher")); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	key := rand.Text()
	var text bytes.Buffer
	err = configuration.Execute(&text, map[string]any{
		"HealthConfig": testkit.HealthConfig, "DataDir": d.dataDir, "Key": key, "PagePort": d.pagePort,
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
	if err := os.WriteFile(filepath.Join(dir, "inventory.yaml"), fmt.Appendf(nil, inventory, servers),
		0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "hubrelay.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Daemon = testkit.Serve(t, testkit.Command{Path: hubrelay(t), Args: []string{"serve", "-c", file}, Group: true})
	d.Key, d.url = key, "http://"+d.Public
	testkit.Eventually(t, "the daemon to be ready", d.Ready(http.StatusOK))
	return d
}

// env returns the environment variables with which an example finds the daemon.
func (d *daemon) env(hub string) []string {
	return []string{
		"HUBRELAY_URL=" + d.url, "HUBRELAY_KEY=" + d.Key, "HUBRELAY_HUB=" + hub,
		"HUBRELAY_SOCKET=" + filepath.Join(d.dataDir, "redis.sock"),
	}
}

// figure returns the value of a metric, which must exist.
func (d *daemon) figure(t *testing.T, name string) float64 {
	t.Helper()
	value, ok := d.FindMetric(t, name)
	if !ok {
		t.Fatalf("/metrics does not tell %s", name)
	}
	return value
}
