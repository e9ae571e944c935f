package templates

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/samples"
)

// TestOpenFile changes a template in its file: one that fails with what the sink may get replaces no good one, and the log
// says once why.
func TestOpenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "body.tmpl")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("[1]")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		current, err := Source{Key: "template", File: file, Judge: JudgeJSON, Single: true}.Open(relay.SinkSettings{
			Name: "hook", Log: slog.New(slog.NewTextHandler(&log, nil)),
			Samples: func() []relay.Delivery {
				return append(samples.Deliveries([]string{"job.created", "container.error"}), samples.Digest([]string{"job.created"}))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		good := "[1]"
		for _, c := range []struct{ text, said string }{
			{"[1,\n{{ .Topik }}]", "template_file " + file + ", line 2, column 4: at .Topik: there is no .Topik here"},
			{`{{ if eq .Topic "container.error" }}{{ .Topic }}{{ else }}{}{{ end }}`, "(with a sample of container.error)"},
			{"[1]\n{{ .Topic\n\n  ", file + ", line 4: unclosed action started in line 2"},
			{`{{ if eq .Topic "hubrelay.digest" }}x{{ else }}[2]{{ end }}`, ""},
			{"", "renders nothing"},
			{"[3, 4]", ""},
		} {
			log.Reset()
			put(c.text)
			for range 3 {
				time.Sleep(2 * checkPause)
				current()
			}
			if c.said == "" {
				good = c.text
			} else if text := strings.ReplaceAll(log.String(), `\"`, `"`); strings.Count(text, "\n") != 1 || !strings.Contains(text, c.said) {
				t.Errorf("%s: logged %s", c.text, text)
			}
			if got := current().source; got != good {
				t.Errorf("%s: in use is %s, want %s", c.text, got, good)
			}
		}
	})
}

// checkPause is more than a file goes without a look.
const checkPause = time.Second
