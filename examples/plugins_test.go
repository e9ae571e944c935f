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
)

// The plugins of the daemon append a line for each notification that they have handled, with the id that the publisher was told.
func TestPlugins(t *testing.T) {
	d := startDaemon(t)
	file := filepath.Join(t.TempDir(), "one.json")
	object := rand.Text()
	text := fmt.Sprintf(`{"topic":"container.instance.state.changed","object":{"id":%q,"state":"running"},"context":{"containers":["c1","c2"]}}`, object)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(run(t, d.env("hub-plugins"), d.binary, "publish", file))
	for _, report := range []string{"watcher-go.jsonl"} {
		var got struct {
			Topic, ID, Instance, State string
			Containers                 []string
		}
		eventually(t, report, func() error {
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
