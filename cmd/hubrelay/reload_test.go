package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// reconfigure replaces the configuration file atomically and waits until the daemon has applied n files.
func (d *daemon) reconfigure(t *testing.T, file string, s daemonConfig, n int) {
	t.Helper()
	fresh := writeFile(t, filepath.Dir(file), "fresh.yaml", s.renderYAML())
	if err := os.Rename(fresh, file); err != nil {
		t.Fatal(err)
	}
	d.waitForReload(t, n)
}

func (d *daemon) waitForReload(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, "the configuration to be taken over", func() error {
		if got := strings.Count(d.Err.String(), "configuration was applied"); got < n {
			return fmt.Errorf("taken over %d times, want %d", got, n)
		}
		return nil
	})
}

// waitUntilRejected waits until the key is rejected.
func (d *daemon) waitUntilRejected(t *testing.T, key string) {
	t.Helper()
	testkit.Eventually(t, "the key to be refused", func() error {
		r, err := d.Try(t.Context(), testkit.Request{Method: "GET", Key: key, Hub: "hub-1"})
		if err == nil && r.Status != http.StatusUnauthorized {
			err = fmt.Errorf("answered %d", r.Status)
		}
		return err
	})
}

// TestReload changes, adds and removes sinks of a running daemon. Other sinks are not affected, and deliveries in
// progress arrive once.
func TestReload(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	release := make(chan struct{})
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		if h.path == "/slow" {
			<-release
		}
		w.WriteHeader(http.StatusNoContent)
	})
	const slow = ", timeout: 2m" // the test holds its requests
	before := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}
	before.sinks = webhookSink("slow", hooks.url+"/slow", slow) + webhookSink("moves", hooks.url+"/old", "") +
		webhookSink("goes", hooks.url+"/goes", "")
	file := writeFile(t, tempDir(t), "hubrelay.yaml", before.renderYAML())
	d := serveFile(t, file)
	first := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	testkit.Eventually(t, "the changing sinks", hooks.acceptedAll("/old", first))
	testkit.Eventually(t, "the sink that goes", hooks.acceptedAll("/goes", first))
	testkit.Eventually(t, "requests to the slow receiver", func() error {
		if n := len(hooks.of("/slow")); n < len(first) {
			return fmt.Errorf("got %d requests", n)
		}
		return nil
	})

	after := before
	after.sinks = webhookSink("slow", hooks.url+"/slow", slow) + webhookSink("moves", hooks.url+"/new",
		`, topics: ["*"]`) + webhookSink("comes", hooks.url+"/comes", "")
	d.reconfigure(t, file, after, 1)
	second := d.Publish(t, "hub-1", "application/x-ndjson", lines(3), nil)
	testkit.Eventually(t, "the new address", hooks.acceptedAll("/new", second))
	testkit.Eventually(t, "the new sink", hooks.acceptedAll("/comes", second))
	close(release)
	testkit.Eventually(t, "the sink that was left alone", hooks.acceptedAll("/slow", append(first, second...)))
	if n := len(hooks.of("/slow")); n != len(first)+len(second) {
		t.Errorf("the slow receiver got %d requests", n)
	}
	for path, want := range map[string]int{"/old": 3, "/new": 3, "/goes": 3, "/comes": 3} {
		if n := len(hooks.of(path)); n != want {
			t.Errorf("%s got %d, want %d", path, n, want)
		}
	}
	list, _, _ := call(t, nil, "", "sinks", "list", "--admin", d.Admin)
	for _, part := range []string{"comes", "goes", "removed"} {
		if !strings.Contains(list, part) {
			t.Errorf("no %s in\n%s", part, list)
		}
	}
	if page := d.Metrics(t); strings.Contains(page, `sink="goes"`) ||
		!strings.Contains(page, `hubrelay_sink_in_flight{sink="comes"} 0`) ||
		!strings.Contains(page, "hubrelay_config_last_reload_successful 1") {
		t.Errorf("metrics:\n%s", page)
	}

	// A sink that was removed for some time receives what it missed.
	third := d.Publish(t, "hub-1", "application/x-ndjson", lines(2), nil)
	after.sinks += webhookSink("goes", hooks.url+"/goes", "")
	d.reconfigure(t, file, after, 2)
	testkit.Eventually(t, "the sink that was added again", hooks.acceptedAll("/goes", append(second, third...)))
}

// TestReload_InvalidConfig writes invalid configurations. The daemon continues, and the log and a metric report the
// problem.
func TestReload_InvalidConfig(t *testing.T) {
	t.Parallel()
	hooks := receive(t, nil)
	good := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one", "")}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", good.renderYAML())
	d := serveFile(t, file)
	for i, bad := range []string{
		"server: [", // not YAML
		strings.Replace(good.renderYAML(), "webhook", "webhok", 1),     // unknown type
		strings.Replace(good.renderYAML(), "whsec_", "whsec", 1),       // missing secret
		good.renderYAML() + webhookSink("one", hooks.url+"/other", ""), // duplicate name
		strings.Replace(good.renderYAML(), opsKey, readerKey, 1),       // duplicate key
	} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the error to be logged", func() error {
			if n := strings.Count(d.Err.String(), "the previous one stays active"); n != i+1 {
				return fmt.Errorf("told %d times of %d mistakes", n, i+1)
			}
			return nil
		})
		if d.Metric(t, "hubrelay_config_last_reload_successful") != 0 {
			t.Error("the figure says that all is well")
		}
	}
	ids := d.Publish(t, "hub-1", "application/x-ndjson", lines(2), nil)
	testkit.Eventually(t, "the sink of before", hooks.acceptedAll("/one", ids))
	d.checkRejectionIsShown(t, 5)
	if text := d.Err.String(); !strings.Contains(text, "hubrelay.yaml:") || strings.Contains(text, webhookSecret) {
		t.Errorf("logged:\n%s", text)
	}
	d.reconfigure(t, file, good, 1)
	if d.Metric(t, "hubrelay_config_last_reload_successful") != 1 {
		t.Error("the figure does not say that all is well again")
	}
	if _, errOut, _ := call(t, nil, "", "sinks", "list", "--admin", d.Admin); errOut != "" {
		t.Errorf("after a valid configuration, sinks list printed %s", errOut)
	}
}

// checkRejectionIsShown checks what commands, the readiness check and the audit log show after n rejected configurations.
// The last one has a duplicate key.
func (d *daemon) checkRejectionIsShown(t *testing.T, n int) {
	t.Helper()
	const summary, problem = "the configuration file was rejected at ", "hubrelay.yaml:"
	for _, args := range [][]string{{"list"}, {"test", "one"}} {
		_, errOut, code := call(t, nil, "", append(append([]string{"sinks"}, args...), "--admin", d.Admin)...)
		if code != 0 || !strings.Contains(errOut, "warning: "+summary) || !strings.Contains(errOut, problem) {
			t.Errorf("sinks %v: got %d %s, want a warning", args, code, errOut)
		}
	}
	for path, want := range map[string]bool{"/readyz": false, "/readyz?verbose": true} {
		r, err := d.GetHealth(t.Context(), path)
		if err != nil || r.Status != 200 || strings.Contains(r.Body, summary) != want || strings.Contains(r.Body, problem) {
			t.Errorf("%s: got %d %s, %v; want the warning: %t", path, r.Status, r.Body, err, want)
		}
	}
	// The daemon tries again every two seconds, but does not record that.
	testkit.Eventually(t, "one entry per rejected configuration", func() error {
		out, errOut, code := call(t, nil, "", "audit", "--action", "config.reload", "--json", "--admin", d.Admin)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if code != 0 || len(lines) != n || !strings.Contains(lines[0], `"result":"rejected"`) ||
			!strings.Contains(lines[0], problem) {
			return fmt.Errorf("got %d\n%s%s; want %d entries with their problems", code, out, errOut, n)
		}
		return nil
	})
}

// TestReload_Keys removes a key with an open stream and adds a new one. Changes that need a restart are reported.
func TestReload_Keys(t *testing.T) {
	t.Parallel()
	const other = "other-key-0123456789abcdef"
	text := daemonConfig{redis: `url: "memory:"`, keys: `    - {name: other, key: ` + other +
		`, account_id: "*", hubs: ["*"]}`}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
	d := serveFile(t, file)
	goes, stays := d.connect(t, other, "hub-1", ""), d.connect(t, readerKey, "hub-1", "")
	text.keys, text.server = "", ", max_body: 2MiB"
	d.reconfigure(t, file, text, 1)
	_ = goes.closed(t, 1008)
	if r := d.Do(t, testkit.Request{Method: "GET", Key: other, Hub: "hub-1"}); r.Status != http.StatusUnauthorized {
		t.Errorf("the removed key got status %d", r.Status)
	}
	d.Publish(t, "hub-1", "application/json", `{"topic":"container.created","context":{"account_id":"acme"}}`, nil)
	stays.wait(t, 1)
	testkit.Eventually(t, "the word about what needs a restart", d.Err.Contains("server.max_body"))

	text.keys = `    - {name: other, key: ` + other + `, account_id: "*", hubs: ["*"]}`
	if err := os.WriteFile(file, []byte(text.renderYAML()), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP) // immediately, without the next periodic check
	testkit.Eventually(t, "the new key", func() error {
		r, err := d.Try(t.Context(), testkit.Request{Method: "GET", Key: other, Hub: "hub-1"})
		if err == nil && r.Status != http.StatusOK {
			err = fmt.Errorf("answered %d", r.Status)
		}
		return err
	})
}

// TestReloadUnderLoad changes a sink repeatedly under load. Nothing is lost, and accepted deliveries do not repeat.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	for _, ordering := range []string{"none", "hub"} {
		t.Run(ordering, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			hooks := receive(t, func(w http.ResponseWriter, _ hook) {
				time.Sleep(time.Millisecond) // keeps deliveries in flight
				w.WriteHeader(http.StatusNoContent)
			})
			text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}
			sinks := func(n int) string {
				return webhookSink("one", hooks.url+"/one", fmt.Sprintf(", ordering: %s, headers: {X-Generation: %q}",
					ordering, fmt.Sprint(n)))
			}
			text.sinks = sinks(0)
			file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
			d := serveFile(t, file)
			var ids []string
			for n := range 5 {
				ids = append(ids, d.Publish(t, "hub-1", "application/x-ndjson", lines(400), nil)...)
				text.sinks = sinks(n + 1)
				d.reconfigure(t, file, text, n+1)
			}
			testkit.Eventually(t, "all of it", hooks.acceptedAll("/one", ids))
			if n := len(hooks.of("/one")); n != len(ids) {
				t.Errorf("%d requests for %d events", n, len(ids))
			}
		})
	}
}

// TestReload_WithHangingSinks removes a key while attempts of a changed sink do not end.
func TestReload_WithHangingSinks(t *testing.T) {
	t.Parallel()
	for _, ordering := range []string{"none", "hub"} {
		t.Run(ordering, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			hooks := receive(t, func(w http.ResponseWriter, _ hook) {
				<-release
				w.WriteHeader(http.StatusNoContent)
			})
			defer close(release)
			text := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one",
				", timeout: 1h, ordering: "+ordering)}
			file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
			d := serveFile(t, file)
			ids := d.Publish(t, "hub-1", "application/json", plain, nil)
			testkit.Eventually(t, "an attempt", func() error {
				if len(hooks.of("/one")) == 0 {
					return errors.New("none yet")
				}
				return nil
			})
			text.sinks = webhookSink("one", hooks.url+"/other", ", timeout: 1h, ordering: "+ordering)
			if err := os.WriteFile(file, []byte(text.renderYAML()), 0o600); err != nil {
				t.Fatal(err)
			}
			d.Signal(syscall.SIGHUP)
			gone := strings.Replace(text.renderYAML(), readerKey, "another-"+readerKey, 1)
			if err := os.WriteFile(file, []byte(gone), 0o600); err != nil {
				t.Fatal(err)
			}
			d.Signal(syscall.SIGHUP)
			d.waitUntilRejected(t, readerKey)
			// After the grace period the attempt is released, and the sink with the new configuration makes it.
			testkit.Eventually(t, "an attempt at the new address", func() error {
				for _, h := range hooks.of("/other") {
					if h.id == ids[0] {
						return nil
					}
				}
				return errors.New("none yet")
			})
		})
	}
}

// A removed sink with an attempt in progress delays no later configuration. Otherwise a new sink would miss the events that
// are published until then.
func TestReload_WhileRemovedSinkStops(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hooks := receive(t, func(w http.ResponseWriter, h hook) {
		if h.path == "/slow" {
			<-release
		}
		w.WriteHeader(http.StatusNoContent)
	})
	releaseAll := sync.OnceFunc(func() { close(release) })
	t.Cleanup(releaseAll)
	slow, two := webhookSink("slow", hooks.url+"/slow", ", timeout: 1h"), webhookSink("two", hooks.url+"/two", "")
	render := func(sinks string) string {
		text := daemonConfig{redis: `url: "memory:"`, sinks: webhookSink("one", hooks.url+"/one", "") + sinks}.renderYAML()
		return strings.Replace(text, "shutdown_grace: 5s", "shutdown_grace: 1m", 1)
	}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", render(slow))
	d := serveFile(t, file)
	reload := func(n int, sinks string) {
		t.Helper()
		fresh := writeFile(t, filepath.Dir(file), "fresh.yaml", render(sinks))
		if err := os.Rename(fresh, file); err != nil { // without a signal, which could reload it a second time
			t.Fatal(err)
		}
		d.waitForReload(t, n)
	}
	wantAttempts := func(path string, n int) {
		t.Helper()
		testkit.Eventually(t, "attempts at "+path, func() error {
			if got := len(hooks.of(path)); got != n {
				return fmt.Errorf("there are %d, want %d", got, n)
			}
			return nil
		})
	}
	d.Publish(t, "hub-1", "application/json", plain, nil)
	wantAttempts("/slow", 1)
	reload(1, "")
	reload(2, two)
	d.Publish(t, "hub-1", "application/json", plain, nil)
	wantAttempts("/two", 1)
	env := []string{"HUBRELAY_ADMIN=" + d.Admin}
	_, errOut, code := call(t, env, "", "sinks", "forget", "slow")
	if code != 1 || !strings.Contains(errOut, "attempts of the removed sink are still in progress") {
		t.Errorf("forget a sink that stops: got exit code %d, want 1: %s", code, errOut)
	}
	// The sink continues when the old one has stopped, with the last configuration only.
	reload(3, two+webhookSink("slow", hooks.url+"/obsolete", ""))
	reload(4, two+webhookSink("slow", hooks.url+"/fast", ""))
	if got := len(hooks.of("/fast")); got != 0 {
		t.Errorf("before the old sink has stopped: got %d attempts, want 0", got)
	}
	releaseAll()
	wantAttempts("/fast", 1)
	for path, want := range map[string]int{"/slow": 1, "/obsolete": 0, "/two": 1} {
		if got := len(hooks.of(path)); got != want {
			t.Errorf("%s: got %d attempts, want %d", path, got, want)
		}
	}
}

// TestReloadWhileStarting changes the file while the daemon waits for its Redis.
func TestReloadWhileStarting(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	text := daemonConfig{redis: fmt.Sprintf("url: %q", server.URL())}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", text.renderYAML())
	server.Kill()
	d := newDaemon(start(t, nil, "serve", "-c", file))
	testkit.Eventually(t, "the daemon to wait for Redis", d.Err.Contains("waiting for redis"))
	if err := os.WriteFile(file, []byte(strings.Replace(text.renderYAML(), readerKey, "another-"+readerKey, 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	d.Await(t)
	d.waitUntilRejected(t, readerKey)
	d.Stop(t)
}
