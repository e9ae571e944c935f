package examples

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/plugins/plugintest"
)

// The example plugins pass the checks of all plugins.
func TestPluginsPassTheirCheck(t *testing.T) {
	t.Parallel()
	report := fmt.Appendf(nil, `{"report":%q}`, filepath.Join(t.TempDir(), "report.jsonl"))
	watcher := programs.Path(t, "./plugin-go-instance-watch")
	for _, p := range []plugintest.Plugin{
		{Command: []string{watcher}, Env: []string{"GORACE=atexit_sleep_ms=0"}},
		{Command: []string{pythonWith(t, "grpc"), "plugin-python/plugin.py"}, PlainSocket: true},
	} {
		p.Config, p.StartupTimeout, p.Timeout = report, patience, patience
		t.Run(filepath.Base(p.Command[0]), func(t *testing.T) { plugintest.Run(t, p) })
	}
}

// The plugins append a line for each notification, with the id that the publisher received.
func TestPlugins(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	file := filepath.Join(t.TempDir(), "one.json")
	object := rand.Text()
	text := fmt.Sprintf(`{"topic":"container.instance.state.changed","object":{"id":%q,"state":"running"},`+
		`"context":{"containers":["c1","c2"]}}`, object)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(run(t, d.env("hub-plugins"), hubrelay(t), "publish", file))
	for _, report := range []string{"watcher-go.jsonl", "watcher-python.jsonl"} {
		var got struct {
			Topic, ID, Instance, State string
			Containers                 []string
		}
		testkit.Eventually(t, report, func() error {
			lines, err := os.ReadFile(filepath.Join(d.dir, report))
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(lines)) {
				if strings.Contains(line, object) {
					return json.Unmarshal([]byte(line), &got)
				}
			}
			return errors.New("it has no line of " + object)
		})
		if got.Topic != "container.instance.state.changed" || !strings.Contains(id, got.ID) || len(got.ID) != 24 ||
			got.Instance != object || got.State != "running" || strings.Join(got.Containers, " ") != "c1 c2" {
			t.Errorf("%s: %+v, published as %s", report, got, id)
		}
	}
}
