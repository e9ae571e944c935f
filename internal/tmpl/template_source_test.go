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
	"github.com/hubrelay/hubrelay/relay"
)

// TestOpenFile changes a template in its file: one that fails with what the sink may get replaces no good one, and the log
// says once why.
func TestOpenFile(t *testing.T) {
	t.Parallel()
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
		current, err := Source{Key: "template", File: file, CheckOutput: CheckJSON, Single: true}.Open(relay.SinkSettings{
			Name: "hook", Log: slog.New(slog.NewTextHandler(&log, nil)),
			Samples: func() []relay.Delivery {
				topics := []string{"job.created", "container.error"}
				return append(samples.Deliveries(topics), samples.Digest(topics), samples.Batch(topics))
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
			{"", file + " is empty"},
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

// TestOpenFileThatHasChanged has a file changed between the look at the configuration and the opening of its sink.
func TestOpenFileThatHasChanged(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "body.tmpl")
	if err := os.WriteFile(file, []byte(`{{ if eq .Topic "container.error" }}{{ .Topic }}{{ else }}{}{{ end }}`), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := relay.SinkSettings{Name: "hook", Log: slog.New(slog.DiscardHandler)}
	s := Source{Key: "template", File: file, CheckOutput: CheckJSON}
	if _, err := s.Open(settings); err != nil {
		t.Errorf("without samples: %v", err)
	}
	settings.Samples = func() []relay.Delivery { return samples.Deliveries([]string{"job.created", "container.error"}) }
	if _, err := s.Open(settings); err == nil || !strings.Contains(err.Error(), "(with a sample of container.error)") {
		t.Errorf("opened with %v", err)
	}
}

// TestOpenSlowFile changes a file while deliveries want it: one of them waits, and not for long.
func TestOpenSlowFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "body.tmpl")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("a")
	synctest.Test(t, func(t *testing.T) {
		source := Source{Key: "template", File: file, Options: Options{Now: func() time.Time {
			time.Sleep(3 * checkPause)
			return time.Now()
		}}}
		current, err := source.Open(relay.SinkSettings{
			Name: "hook", Log: slog.New(slog.DiscardHandler),
			Samples: func() []relay.Delivery {
				return samples.Deliveries([]string{"job.created", "job.updated", "container.error"})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(checkPause)
		put("{{ now }}")
		first := make(chan time.Duration, 1)
		began := time.Now()
		go func() { current(); first <- time.Since(began) }()
		time.Sleep(2 * checkPause) // so that the file is due for another look
		if got := current().source; got != "a" || time.Since(began) != 2*checkPause {
			t.Errorf("meanwhile %s is in use, after %s", got, time.Since(began))
		}
		if took := <-first; took != 3*checkPause { // the sample that was begun is finished, and no other is begun
			t.Errorf("the first waited for %s", took)
		}
		if got := current().source; got != "{{ now }}" {
			t.Errorf("in use is %s", got)
		}
	})
}

// checkPause is more than a file goes without a look.
const checkPause = time.Second
