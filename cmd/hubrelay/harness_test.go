package main_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// patience bounds every wait for something that must happen, or for its next step. It is long for machines that do much besides.
const patience = 60 * time.Second

const notificationsPath = "/v1/hubs/current/notifications"

// The keys of every daemon here: a platform's, and one that may only listen.
const (
	opsKey    = "ops-key-0123456789abcdef"
	readerKey = "reader-key-0123456789abcdef"
)

// binary is the program under test, set by TestMain.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hubrelay-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "hubrelay")
	args := []string{"build", "-o", binary}
	if underRace() {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	if err := sideBySide(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// sideBySide lets at least eight tests run at once, also where there are fewer processors, unless -parallel is given: nearly
// all of them wait for other processes.
func sideBySide() error {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given || runtime.GOMAXPROCS(0) >= 8 {
		return nil
	}
	return flag.Set("test.parallel", "8")
}

// underRace says whether the tests run with -race; then the program does too.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// setup is what a test wants of a daemon. The parts are YAML: the first three go on in {…}, the others are lines.
type setup struct {
	server, redis, auth string
	keys, sinks         string
	env                 []string
}

func (s setup) yaml() string {
	return fmt.Sprintf(`server: {listen: "127.0.0.1:0", shutdown_grace: 5s%s}
health: {listen: "127.0.0.1:0"}
redis: {%s}
auth:
  %s
  keys:
    - {name: ops, key: %s, account_id: "*", hubs: ["*"], capabilities: [notifications-publish]}
    - {name: reader, key: %s, account_id: acme, hubs: [hub-1, hub-2]}
%s
sinks:
%s
`, s.server, s.redis, s.auth, opsKey, readerKey, s.keys, s.sinks)
}

// folder is a new one with a path short enough for a unix socket. A redis-server that still works in it is killed
// when the test ends.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pid := redisPID(filepath.Join(dir, "data")); pid > 0 && !gone(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// daemon is a hubrelay that serves.
type daemon struct {
	*process
	public, health string
	admin          string // path of the socket
}

// serve starts a daemon and waits until it is ready. When the test ends it must stop in order.
func serve(t *testing.T, s setup) *daemon {
	t.Helper()
	return serveFile(t, write(t, folder(t), "hubrelay.yaml", s.yaml()), s.env...)
}

func serveFile(t *testing.T, file string, env ...string) *daemon {
	t.Helper()
	return serveIn(t, filepath.Dir(file), file, env...) // where its data goes
}

// serveIn does the same in a folder, which file may be relative to.
func serveIn(t *testing.T, dir, file string, env ...string) *daemon {
	t.Helper()
	d := &daemon{process: startIn(t, dir, env, "serve", "-c", file)}
	t.Cleanup(func() {
		if !t.Failed() {
			d.stop(t)
		}
	})
	d.await(t)
	return d
}

// await waits until the daemon serves.
func (d *daemon) await(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "the daemon to serve", func() error {
		select {
		case <-d.ended:
			t.Fatalf("serve ended with %d:\n%s", d.cmd.ProcessState.ExitCode(), d.err.String())
		default:
		}
		return d.serving()
	})
}

// stop asks the daemon to end and demands that it does with 0. One that has ended by the test's own doing is left alone.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	select {
	case <-d.ended:
		return
	default:
	}
	d.signal(syscall.SIGTERM)
	if code := d.exit(t); code != 0 {
		t.Errorf("serve ended with %d after SIGTERM:\n%s", code, tail(d.err.String(), 6000))
	}
}

// request is an HTTP request to the public listener. Empty fields are left out.
type request struct {
	method, path, key, hub, contentType, body string
	header                                    map[string]string
}

type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request, and fails the test where there is no answer.
func (d *daemon) do(t *testing.T, r request) reply {
	t.Helper()
	answer, err := d.try(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func (d *daemon) try(ctx context.Context, r request) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path := notificationsPath
	if r.path != "" {
		path = r.path
	}
	req, err := http.NewRequestWithContext(ctx, r.method, "http://"+d.public+path, strings.NewReader(r.body))
	if err != nil {
		return reply{}, err
	}
	for name, value := range map[string]string{"X-Hub-Id": r.hub, "Content-Type": r.contentType} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	return readReply(res)
}

func readReply(res *http.Response) (reply, error) {
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return reply{status: res.StatusCode, header: res.Header, body: string(body)}, err
}

// publish demands 202 and returns the ids.
func (d *daemon) publish(t *testing.T, hub, contentType, body string, header map[string]string) []string {
	t.Helper()
	r := d.do(t, request{method: "POST", key: opsKey, hub: hub, contentType: contentType, body: body, header: header})
	var answer struct{ Data struct{ IDs []string } }
	if err := json.Unmarshal([]byte(r.body), &answer); r.status != http.StatusAccepted || err != nil {
		t.Fatalf("publish was answered %d %s", r.status, r.body)
	}
	return answer.Data.IDs
}

// token demands a token.
func (d *daemon) token(t *testing.T, key, hub string) string {
	t.Helper()
	r := d.do(t, request{method: "GET", key: key, hub: hub})
	var answer struct{ Data struct{ Token string } }
	if err := json.Unmarshal([]byte(r.body), &answer); r.status != http.StatusOK || err != nil || answer.Data.Token == "" {
		t.Fatalf("the token request was answered %d %s", r.status, r.body)
	}
	return answer.Data.Token
}

// readyz is the status that the health listener answers.
func (d *daemon) readyz(want int) func() error {
	return func() error {
		res, err := http.Get("http://" + d.health + "/readyz")
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			return fmt.Errorf("readyz answers %d, want %d", res.StatusCode, want)
		}
		return nil
	}
}

// adminGet sends a request to the admin socket.
func (d *daemon) adminGet(path string) (*http.Response, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.admin)
	}}
	return (&http.Client{Transport: transport}).Get("http://localhost" + path)
}
