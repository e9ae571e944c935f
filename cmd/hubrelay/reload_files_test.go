package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func (d *daemon) reloaded(t *testing.T, want float64) {
	t.Helper()
	testkit.Eventually(t, "the figure of the last reload", func() error {
		if got := d.Metric(t, "hubrelay_config_last_reload_successful"); got != want {
			return fmt.Errorf("it is %v, want %v", got, want)
		}
		return nil
	})
}

func (d *daemon) refused(t *testing.T, n int, problem string) {
	t.Helper()
	testkit.Eventually(t, "the problem to be logged", func() error {
		text := d.Err.String()
		if got := strings.Count(text, "the previous one stays active"); got != n ||
			!strings.Contains(text, problem) {
			return fmt.Errorf("logged %d times, want %d, with %q", got, n, problem)
		}
		return nil
	})
}

// TestReload_AfterFixInReferencedFile has a configuration that is rejected because of another file. After a fix of
// that file, it is applied without a change.
func TestReload_AfterFixInReferencedFile(t *testing.T) {
	t.Parallel()
	hooks := receive(t, nil)
	s := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one", "")}
	dir := tempDir(t)
	file := writeFile(t, dir, "hubrelay.yaml", s.renderYAML())
	d := serveFile(t, file)
	s.sinks += webhookSink("two", hooks.url+"/two", ", bearer_file: bearer, format: template, template_file: body.tmpl")
	writeFile(t, dir, "hubrelay.yaml", s.renderYAML())
	d.refused(t, 1, "bearer_file: the file cannot be read")
	d.reloaded(t, 0)
	writeFile(t, dir, "bearer", "s3cret-0123456789")
	d.refused(t, 2, "template_file: the file cannot be read")
	writeFile(t, dir, "body.tmpl", "{{ .Topik }}")
	d.refused(t, 3, "there is no .Topik here")
	writeFile(t, dir, "body.tmpl", "{{ . }}")
	d.waitForReload(t, 1)
	d.reloaded(t, 1)
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(2), nil)
	testkit.Eventually(t, "the new sink", hooks.acceptedAll("/two", ids))
	d.refused(t, 3, "") // nothing was logged twice
}

// TestReload_FileIsMissing removes the configuration for some time. The daemon continues and reports it in a metric.
func TestReload_FileIsMissing(t *testing.T) {
	t.Parallel()
	hooks := receive(t, nil)
	s := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one", "")}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", s.renderYAML())
	d := serveFile(t, file)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	d.reloaded(t, 0)
	const gone = "file is not readable"
	testkit.Eventually(t, "the warning", d.Err.Contains(gone))
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(2), nil)
	testkit.Eventually(t, "the sink of before", hooks.acceptedAll("/one", ids))
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	d.reloaded(t, 1)
	if n := strings.Count(d.Err.String(), gone); n != 1 {
		t.Errorf("told %d times that it is gone", n)
	}
}

// TestTemplateFileBecomesInvalid changes a template file. An error for any topic is reported with its position, and
// the last valid template continues.
func TestTemplateFileBecomesInvalid(t *testing.T) {
	t.Parallel()
	hooks := receive(t, func(w http.ResponseWriter, _ hook) { w.WriteHeader(http.StatusNoContent) })
	dir := tempDir(t)
	body := writeFile(t, dir, "body.tmpl", `{"v": 1, "topic": {{ toJson .Topic }}}`)
	s := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one",
		`, topics: ["container.*"], format: template, template_file: body.tmpl`)}
	d := serveFile(t, writeFile(t, dir, "hubrelay.yaml", s.renderYAML()))
	publish := func() { d.Publish(t, "hub-1", "application/x-ndjson", lines(1), nil) }
	replace := func(text string) { // atomically, because a partial file is another error
		t.Helper()
		if err := os.Rename(writeFile(t, dir, "fresh.tmpl", text), body); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	for i, c := range []struct{ text, said string }{
		{"\n{{ .Topik }}", filepath.Base(body) + ", line 2, column 4: at .Topik: there is no .Topik here"},
		{`{"v": {{ .Topic }}}`, "is not JSON"},
		{"\n{{ .Topic\n\n  ", "unclosed action started in line 2"},
	} {
		replace(c.text)
		testkit.Eventually(t, "the error to be logged", func() error {
			publish() // files are read when they are needed
			time.Sleep(50 * time.Millisecond)
			return d.Err.Contains(c.said)()
		})
		if n := strings.Count(d.Err.String(), "file reload failed"); n != i+1 {
			t.Errorf("got %d log lines, want %d", n, i+1)
		}
	}
	replace(`{"v": 2}`)
	testkit.Eventually(t, "the fixed template", func() error {
		publish()
		time.Sleep(50 * time.Millisecond)
		for _, h := range hooks.of("/one") {
			if h.body == `{"v": 2}` {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(hooks.of("/one")))
	})
	for _, h := range hooks.of("/one") {
		if text := h.body; text != `{"v": 2}` && !strings.HasPrefix(text, `{"v": 1, "topic": "container.`) {
			t.Errorf("sent %s", text)
		}
	}
	for line := range strings.Lines(d.Metrics(t)) {
		if strings.HasPrefix(line, "hubrelay_sink_dead_letters_total{") && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("there are dead letters: %s", line)
		}
	}
	if strings.Contains(d.Err.String(), " t:") {
		t.Errorf("an internal name is shown:\n%s", d.Err.String())
	}
}

// TestReloadRejectedDuringAnother rejects a file while the last one is still being applied. The final state reports
// the error.
func TestReloadRejectedDuringAnother(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hooks := receive(t, func(w http.ResponseWriter, _ hook) {
		<-release
		w.WriteHeader(http.StatusNoContent)
	})
	text := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one", ", timeout: 1h")}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
	d := serveFile(t, file)
	d.Publish(t, "hub-1", "application/json", plain, nil)
	testkit.Eventually(t, "an attempt", func() error {
		if len(hooks.of("/one")) == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	text.sinks = webhookSink("one", hooks.url+"/other", ", timeout: 1h")
	changed := strings.Replace(text.renderYAML(), readerKey, "another-"+readerKey, 1)
	writeFile(t, filepath.Dir(file), filepath.Base(file), changed)
	d.Signal(syscall.SIGHUP)
	d.waitUntilRejected(t, readerKey)
	fresh := writeFile(t, filepath.Dir(file), "fresh.yaml", changed+"nothing: like it\n")
	if err := os.Rename(fresh, file); err != nil { // without a signal, which could reload it a second time
		t.Fatal(err)
	}
	d.refused(t, 1, "nothing")
	close(release)
	d.waitForReload(t, 1)
	for range 5 { // a later attempt would fix it
		if got := d.Metric(t, "hubrelay_config_last_reload_successful"); got != 0 {
			t.Fatalf("it says %v of a file that was refused", got)
		}
	}
	writeFile(t, filepath.Dir(file), filepath.Base(file), changed)
	d.reloaded(t, 1)
}
