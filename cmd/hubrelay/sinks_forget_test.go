package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A sink that a reload removed can be forgotten without a restart.
func TestSinksForget_AfterReload(t *testing.T) {
	t.Parallel()
	both := daemonConfig{
		redis: `url: "memory:"`,
		sinks: webhookSink("stays", "http://127.0.0.1:1/", "") + webhookSink("leaves", "http://127.0.0.1:1/", ""),
	}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", both.renderYAML())
	d := serveFile(t, file)
	env := []string{"HUBRELAY_ADMIN=" + d.Admin}
	_, errOut, code := call(t, env, "", "sinks", "forget", "leaves")
	if code != 1 || !strings.Contains(errOut, "remove it from the configuration first") {
		t.Errorf("forget a configured sink: got exit code %d, want 1: %s", code, errOut)
	}
	one := both
	one.sinks = webhookSink("stays", "http://127.0.0.1:1/", "")
	d.reconfigure(t, file, one, 1)
	testkit.Eventually(t, "the removed sink to be forgotten", func() error { // it may still stop
		if out, errOut, code := call(t, env, "", "sinks", "forget", "leaves"); code != 0 {
			return fmt.Errorf("got exit code %d: %s%s", code, out, errOut)
		}
		return nil
	})
	if out, _, code := call(t, env, "", "sinks", "list"); code != 0 || strings.Contains(out, "leaves") {
		t.Errorf("list the sinks: got exit code %d and %s, want no sink \"leaves\"", code, out)
	}
	d.reconfigure(t, file, both, 2)
	if out, _, code := call(t, env, "", "sinks", "list"); code != 0 || !strings.Contains(out, "leaves") {
		t.Errorf("list the sinks after another reload: got exit code %d and %s, want a sink \"leaves\"", code, out)
	}
}

// TestSinksForget_OtherNode runs the command on a node without the sink, while another node has it.
func TestSinksForget_OtherNode(t *testing.T) {
	t.Parallel()
	config := daemonConfig{redis: fmt.Sprintf("url: %q", redistest.Start(t).URL())}
	without := serve(t, config)
	config.sinks = webhookSink("leaves", "http://127.0.0.1:1/", "")
	with := serve(t, config)
	env := []string{"HUBRELAY_ADMIN=" + without.Admin}
	testkit.Eventually(t, "the records of both nodes", func() error {
		if out, _, _ := call(t, env, "", "nodes", "list", "--json"); strings.Count(out, `"seen_at"`) != 2 {
			return errors.New(out)
		}
		return nil
	})
	for _, args := range [][]string{{"list"}, {"show", "leaves"}} {
		args = append([]string{"sinks"}, args...)
		if out, _, _ := call(t, []string{"HUBRELAY_ADMIN=" + with.Admin}, "", args...); !strings.Contains(out, "not configured on node-") {
			t.Errorf("%v does not name the node without the sink:\n%s", args, out)
		}
	}
	_, errOut, code := call(t, env, "", "sinks", "forget", "leaves")
	if code != 1 || !strings.Contains(errOut, "has the sink, is still stopping it") {
		t.Errorf("forget a sink of another node: got exit code %d, want 1: %s", code, errOut)
	}
	with.Stop(t)
	testkit.Eventually(t, "the other node to leave", func() error {
		if out, errOut, code := call(t, env, "", "sinks", "forget", "leaves"); code != 0 {
			return fmt.Errorf("got exit code %d, want 0: %s%s", code, out, errOut)
		}
		return nil
	})
}

// receiveLater starts a receiver that responds after release was called.
func receiveLater(t *testing.T) (hooks *receiver, release func()) {
	t.Helper()
	released := make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	hooks = receive(t, func(http.ResponseWriter, hook) { <-released })
	t.Cleanup(release) // before the receiver is closed
	return hooks, release
}

// awaitAttempt waits until an attempt of a sink is in progress.
func (d *daemon) awaitAttempt(t *testing.T, sink string) {
	t.Helper()
	testkit.WaitFor(t, "an attempt of "+sink, func() bool {
		return d.Metric(t, fmt.Sprintf("hubrelay_sink_in_flight{sink=%q}", sink)) > 0
	})
}

// TestDeliveriesDrop_OtherNode drops deliveries that another node has read, on a node without the sink.
func TestDeliveriesDrop_OtherNode(t *testing.T) {
	t.Parallel()
	hooks, release := receiveLater(t)
	config := daemonConfig{
		redis: fmt.Sprintf("url: %q", redistest.Start(t).URL()), sinks: webhookSink("busy", hooks.url+"/", ", timeout: 1h, concurrency: 1"),
	}
	with := serve(t, config) // the first node fills the queues
	config.sinks = ""
	without := serve(t, config)
	ids := with.Publish(t, "hub-1", "application/x-ndjson", strings.Repeat(plain+"\n", 3), nil)
	with.awaitAttempt(t, "busy")
	args := append([]string{"deliveries", "drop", "busy", "--admin", without.Admin}, ids...)
	out, errOut, code := call(t, nil, "", args...)
	unchanged := strings.Count(errOut, "a node has it") // the node need not have read all of them
	if code != 1 || unchanged == 0 {
		t.Errorf("got exit code %d, want 1 and unchanged deliveries: %s%s", code, out, errOut)
	}
	release()
	testkit.WaitForValue(t, "deliveries", float64(unchanged), func() float64 {
		return with.Metric(t, `hubrelay_sink_attempts_total{result="delivered",sink="busy"}`)
	})
}

// TestSinksForget_OtherNodeStops runs the command while another node still has an attempt of the removed sink in progress.
func TestSinksForget_OtherNodeStops(t *testing.T) {
	t.Parallel()
	hooks, release := receiveLater(t)
	config := daemonConfig{
		redis: fmt.Sprintf("url: %q", redistest.Start(t).URL()), sinks: webhookSink("leaves", hooks.url+"/", ", timeout: 1h"),
	}
	render := func() string {
		return strings.Replace(config.renderYAML(), "shutdown_grace: 5s", "shutdown_grace: 1m", 1)
	}
	file := writeFile(t, tempDir(t), "hubrelay.yaml", render())
	with := serveFile(t, file)
	with.Publish(t, "hub-1", "application/json", plain, nil)
	with.awaitAttempt(t, "leaves")
	config.sinks = ""
	without := serve(t, config)
	writeFile(t, filepath.Dir(file), filepath.Base(file), render())
	with.Signal(syscall.SIGHUP)
	with.waitForReload(t, 1)
	env := []string{"HUBRELAY_ADMIN=" + without.Admin}
	removedAt := time.Now()
	testkit.Eventually(t, "a record of the node after the removal", func() error {
		out, _, _ := call(t, env, "", "nodes", "list", "--json")
		for line := range strings.Lines(out) {
			var node adminapi.Node
			if err := json.Unmarshal([]byte(line), &node); err == nil && node.Name == "node-0" && node.SeenAt.After(removedAt) {
				return nil
			}
		}
		return errors.New(out)
	})
	_, errOut, code := call(t, env, "", "sinks", "forget", "leaves")
	if code != 1 || !strings.Contains(errOut, "node-0 has the sink, is still stopping it") {
		t.Fatalf("forget a sink that stops: got exit code %d, want 1: %s", code, errOut)
	}
	release()
	testkit.Eventually(t, "the sink to stop", func() error {
		if out, errOut, code := call(t, env, "", "sinks", "forget", "leaves"); code != 0 {
			return fmt.Errorf("got exit code %d, want 0: %s%s", code, out, errOut)
		}
		return nil
	})
}
