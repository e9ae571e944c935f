package examples

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// published is a notification that a test sends and expects from a listener.
type published struct{ hub, topic, state, object string }

// publishers are the examples that publish one notification.
var publishers = map[string]func(t *testing.T, d *daemon, p published){
	"curl": func(t *testing.T, d *daemon, p published) {
		out := run(t, d.env(p.hub), "./publish.sh", p.topic, p.state, p.object)
		var answer struct{ Data struct{ IDs []string } }
		if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Data.IDs) != 1 ||
			len(answer.Data.IDs[0]) != 24 {
			t.Errorf("the answer does not hold one id of 24 digits: %s", out)
		}
	},
	"redis-cli": func(t *testing.T, d *daemon, p published) {
		run(t, d.env(p.hub), "./publish-redis.sh", p.topic, p.state, p.object)
	},
	"command": func(t *testing.T, d *daemon, p published) {
		file := filepath.Join(t.TempDir(), "one.json")
		if err := os.WriteFile(file, []byte(fmt.Sprintf(`{"topic":%q,"object":{"id":%q,"state":%q},"context":{}}`,
			p.topic, p.object, p.state)), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, d.env(p.hub), hubrelay(t), "publish", file)
	},
}

// listeners print each notification as a line of JSON, after a line with their ready text. curl and wscat have none;
// wscat prints none without a terminal.
var listeners = []struct {
	name, publisher, ready string
	start                  func(t *testing.T, d *daemon, hub string) *testkit.Process
}{
	{"python websockets", "redis-cli", "listening to hub", func(t *testing.T, d *daemon, hub string) *testkit.Process {
		return start(t, d.env(hub), pythonWith(t, "websockets"), "listen-python/listen.py", "container.*")
	}},
	{"node ws", "curl", "listening to hub", func(t *testing.T, d *daemon, hub string) *testkit.Process {
		return start(t, d.env(hub), "node", "listen-node/listen.mjs", "container.*", "!*.error")
	}},
	{"wscat", "curl", "", func(t *testing.T, d *daemon, hub string) *testkit.Process {
		return start(t, nil, "node_modules/.bin/wscat", "--no-color", "-H", "x-service-token: "+d.Token(t, d.Key, hub),
			"-c", strings.Replace(d.url, "http", "ws", 1)+notificationsPath)
	}},
	{"curl", "redis-cli", "", func(t *testing.T, d *daemon, hub string) *testkit.Process {
		return start(t, d.env(hub), "./listen-events.sh", "container.*")
	}},
	{
		"go client", "command", "connected to the stream",
		func(t *testing.T, d *daemon, hub string) *testkit.Process {
			return start(t, d.env(hub), programs.Path(t, "./listen-go"), "container.*")
		},
	},
}

func TestExamples(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	receiver := start(t, []string{"WEBHOOK_SECRET=" + d.webhookSecret, "PORT=" + d.webhookPort},
		"node", "webhook-receiver-node/receive.mjs")
	receiver.Line(t, "its address", func(l string) bool { return strings.HasPrefix(l, "receiving on") })

	for _, l := range listeners {
		t.Run(l.name+" and webhook receive "+l.publisher, func(t *testing.T) {
			p := published{
				hub: "hub-" + rand.Text(), topic: "container.instance.health.status.changed",
				state: "unhealthy", object: rand.Text(),
			}
			listener := l.start(t, d, p.hub)
			awaitReady(t, d, listener, p, l.ready)
			before := d.figure(t, compressedFrames)
			publishers[l.publisher](t, d, p)
			stream := p.wait(t, listener)
			if l.name == "curl" { // which reads an event stream
				if got := d.figure(t, compressedFrames); got > before {
					t.Errorf("%g compressed frames, and %g before", got, before)
				}
			} else {
				d.compresses(t, before+1)
			}
			webhook := p.wait(t, receiver)
			if stream != webhook {
				t.Errorf("the two ends differ:\nstream  %s\nwebhook %s", stream, webhook)
			}
		})
	}
	t.Run("python resumes after a lost connection", func(t *testing.T) { testPythonGoesOn(t, d) })
	t.Run("a misspelt pattern ends listeners", func(t *testing.T) { testMisspeltPattern(t, d) })
	t.Run("browser receives curl", func(t *testing.T) { testBrowser(t, d) })
	t.Run("browser's EventSource misses nothing", func(t *testing.T) { testEventSource(t, d) })
	t.Run("unsigned webhook is refused", func(t *testing.T) {
		out := run(t, nil, "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "{}",
			"http://127.0.0.1:"+d.webhookPort+"/")
		if out != "401" {
			t.Errorf("the receiver answered %s", out)
		}
	})
}

// All websocket clients in the tests request compression.
const compressedFrames = "hubrelay_stream_compressed_frames_total"

// compresses waits for the metric of compressed frames, which is updated after the frames are sent.
func (d *daemon) compresses(t *testing.T, want float64) {
	t.Helper()
	testkit.Eventually(t, "frames to be compressed", func() error {
		if got := d.figure(t, compressedFrames); got < want {
			return fmt.Errorf("%g are, want %g", got, want)
		}
		return nil
	})
}

// awaitReady returns when the listener is ready: it prints its ready text or one of the notifications sent for this
// purpose.
func awaitReady(t *testing.T, d *daemon, listener *testkit.Process, p published, word string) {
	t.Helper()
	if word != "" {
		listener.Line(t, "that it is ready", func(line string) bool { return strings.Contains(line, word) })
		return
	}
	p.object = "trial"
	testkit.Eventually(t, "the listener to receive something", func() error {
		publishers["curl"](t, d, p)
		if !strings.Contains(listener.Out.String(), p.object) {
			return errors.New("it printed: " + listener.Out.String())
		}
		return nil
	})
}

// wait returns the notification in canonical form after the process has printed it, and checks it.
func (p published) wait(t *testing.T, from *testkit.Process) string {
	t.Helper()
	line := from.Line(t, "the event", func(l string) bool { return strings.Contains(l, p.object) })
	var all map[string]any
	var n struct {
		Topic  string
		Object struct{ ID, State, Error string }
		Flags  *json.RawMessage

		Context struct {
			HubID      string `json:"hub_id"`
			Containers []string
		}
	}
	for _, target := range []any{&n, &all} {
		if err := json.Unmarshal([]byte(line), target); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
	}
	got := published{n.Context.HubID, n.Topic, n.Object.State, n.Object.ID}
	if got != p {
		t.Errorf("published %+v, got %+v", p, got)
	}
	if _, ok := all["flags"]; !ok || n.Flags != nil || n.Context.Containers == nil {
		t.Errorf("flags must be there and null, and containers an array: %s", line)
	}
	delete(all, "cursor") // only in the stream
	canonical, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(canonical)
}

// pythonWith returns a Python with the package, from the same directories as .ci/need.
func pythonWith(t *testing.T, name string) string {
	t.Helper()
	for _, python := range []string{"/usr/bin/python3", "../.bin/python/bin/python3", "python3"} {
		if exec.Command(python, "-c", "import "+name).Run() == nil {
			return python
		}
	}
	t.Fatalf("no python3 has the package %s: make test installs it", name)
	return ""
}
