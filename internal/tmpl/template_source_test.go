package tmpl

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// If a changed file fails with a sample, the last valid template remains in use and the error is logged once.
func TestSourceOpen_FileChanges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "body.tmpl")
	writeFile(t, file, "[1]")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		source := Source{Key: "template", File: file, CheckOutput: CheckJSON, Single: true}
		current, err := source.Open(relay.SinkSettings{
			Name: "hook", Log: slog.New(slog.NewTextHandler(&log, nil)),
			Samples: func() []relay.Delivery {
				topics := []string{"job.created", "container.error"}
				return append(samples.Deliveries(topics), samples.Digest(topics), samples.Batch(topics))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		lastValid := "[1]"
		for _, c := range []struct{ text, problem string }{
			{"[1,\n{{ .Topik }}]", "template_file " + file + ", line 2, column 4: at .Topik: there is no .Topik here"},
			{
				`{{ if eq .Topic "container.error" }}{{ .Topic }}{{ else }}{}{{ end }}`,
				"(with a sample of container.error)",
			},
			{"[1]\n{{ .Topic\n\n  ", file + ", line 4: unclosed action started in line 2"},
			{`{{ if eq .Topic "hubrelay.digest" }}x{{ else }}[2]{{ end }}`, ""},
			{"", file + " is empty"},
			{"[3, 4]", ""},
		} {
			log.Reset()
			writeFile(t, file, c.text)
			for range 3 {
				time.Sleep(2 * checkInterval)
				current()
			}
			text := strings.ReplaceAll(log.String(), `\"`, `"`)
			if c.problem == "" {
				lastValid = c.text
			} else if strings.Count(text, "\n") != 1 || !strings.Contains(text, c.problem) {
				t.Errorf("%s: got log %s, want %s once", c.text, text, c.problem)
			}
			if got := current().source; got != lastValid {
				t.Errorf("%s: got template %s, want %s", c.text, got, lastValid)
			}
		}
	})
}

// The file may change after the check of the configuration and before its sink is opened.
func TestSourceOpen_FileChangedAfterCheck(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "body.tmpl")
	writeFile(t, file, `{{ if eq .Topic "container.error" }}{{ .Topic }}{{ else }}{}{{ end }}`)
	settings := relay.SinkSettings{Name: "hook", Log: testkit.Log(t)}
	s := Source{Key: "template", File: file, CheckOutput: CheckJSON}
	if _, err := s.Open(settings); err != nil {
		t.Errorf("without samples: got error %v", err)
	}
	settings.Samples = func() []relay.Delivery {
		return samples.Deliveries([]string{"job.created", "container.error"})
	}
	_, err := s.Open(settings)
	if err == nil || !strings.Contains(err.Error(), "(with a sample of container.error)") {
		t.Errorf("with samples: got error %v", err)
	}
}

// If a changed template is slow, only one caller waits for its samples, and not for all of them.
func TestSourceOpen_SlowFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "body.tmpl")
	writeFile(t, file, "a")
	synctest.Test(t, func(t *testing.T) {
		source := Source{Key: "template", File: file, Options: Options{Now: func() time.Time {
			time.Sleep(3 * checkInterval)
			return time.Now()
		}}}
		current, err := source.Open(relay.SinkSettings{
			Name: "hook", Log: testkit.Log(t),
			Samples: func() []relay.Delivery {
				return samples.Deliveries([]string{"job.created", "job.updated", "container.error"})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(checkInterval)
		writeFile(t, file, "{{ now }}")
		first := make(chan time.Duration, 1)
		start := time.Now()
		go func() { current(); first <- time.Since(start) }()
		time.Sleep(2 * checkInterval) // the next check of the file is due
		if got := current().source; got != "a" || time.Since(start) != 2*checkInterval {
			t.Errorf("second caller: got template %s after %s", got, time.Since(start))
		}
		if took := <-first; took != 3*checkInterval { // one sample is rendered, and no other is started
			t.Errorf("the first caller waited for %s, want %s", took, 3*checkInterval)
		}
		if got := current().source; got != "{{ now }}" {
			t.Errorf("got template %s, want the changed one", got)
		}
	})
}

// checkInterval is the minimum time between two checks of a file.
const checkInterval = time.Second

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
