package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// roleVariable selects the role of the test binary, which runs itself as an agent and as a driver that can be killed.
const roleVariable = "HUBRELAY_TEST_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == AgentCommand:
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM) // like command hubrelay
		defer cancel()
		err = runAgent(ctx, os.Args[2:])
	case os.Getenv(roleVariable) == "driver":
		err = runDriver()
	default:
		testkit.RunParallel(8) // the tests wait for processes most of the time
		goleak.VerifyTestMain(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// graceVariable sets a shorter grace period of an agent.
const graceVariable = "HUBRELAY_TEST_GRACE"

func runAgent(ctx context.Context, args []string) error {
	text := os.Getenv(graceVariable)
	if text == "" {
		return RunAgent(ctx, args)
	}
	grace, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	return runAgentWithGrace(ctx, args, grace)
}

// driverTask is the task of a driver in another process.
type driverTask struct {
	Migration relay.Migration
	DieAt     string
}

// runDriver reads a task, runs its migration, and kills itself at the given point.
func runDriver() error {
	var task driverTask
	if err := json.NewDecoder(os.Stdin).Decode(&task); err != nil {
		return err
	}
	d := newDriver()
	d.stepHook = func(point string) {
		if point == task.DieAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	return d.Migrate(context.Background(), task.Migration, func(relay.Progress) {})
}

// noExitDelay disables the sleep of one second that the race detector adds before a process exits.
const noExitDelay = "GORACE=atexit_sleep_ms=0"

func newDriver() *Driver {
	return New(Options{
		AgentCommand: []string{"/usr/bin/env", noExitDelay, os.Args[0], AgentCommand},
		StableAfter:  200 * time.Millisecond,
	})
}

// rig consists of the servers a and b, and the instance i on a.
type rig struct {
	t    testing.TB
	a, b string
	m    relay.Migration
	d    *Driver

	mu      sync.Mutex
	reports []relay.Progress
}

// ticker is a shell script that repeatedly writes the time to a volume.
const ticker = `trap 'echo stopped >> volumes/data/log; exit 0' TERM
echo "started $HUBRELAY_INSTANCE $COLOR" >> volumes/data/log
while :; do date +%s%N > volumes/data/now; sleep 0.05; done`

func newRig(t testing.TB, command ...string) *rig {
	t.Helper()
	root := t.TempDir()
	r := &rig{t: t, a: filepath.Join(root, "a"), b: filepath.Join(root, "b"), d: newDriver()}
	for _, dir := range []string{
		r.a, r.b, filepath.Join(r.a, "i/volumes/data/deep/empty"),
		filepath.Join(r.a, "i/volumes/other"),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write("i/volumes/data/file", "contents")
	r.write("i/volumes/data/deep/file", strings.Repeat("deep", 1000))
	r.write("i/volumes/other/file", "other")
	r.write("i/notes.txt", "notes")
	if len(command) > 0 {
		data, err := json.Marshal(instanceFile{Command: command, Env: map[string]string{"COLOR": "green"}})
		if err != nil {
			t.Fatal(err)
		}
		r.write("i/instance.json", string(data))
	}
	r.m = relay.Migration{
		JobID: "job", Lease: 1, Container: "c", Instance: "i", Hub: "h", Stateful: true, CopyVolumes: true,
		Source: server("a", r.a), Destination: server("b", r.b),
	}
	t.Cleanup(r.stopAll)
	return r
}

func server(id, path string, instances ...string) relay.Server {
	return relay.Server{
		ID: id, Cluster: "production", Settings: fmt.Appendf(nil, `{"path":%q}`, path), Instances: instances,
	}
}

func (r *rig) write(path, contents string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.a, path), []byte(contents), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// stopAll stops the agents of the test, wherever the instance is.
func (r *rig) stopAll() {
	homes, _ := filepath.Glob(filepath.Join(filepath.Dir(r.a), "*", "*"))
	for _, home := range homes {
		running, _ := AgentRunning(home)
		if !running {
			continue
		}
		if err := os.Rename(home, home+".gone"); err != nil {
			r.t.Error(err)
		}
		r.until("the agent ends", func() bool { running, _ := AgentRunning(home + ".gone"); return !running })
	}
	r.until("agents are reaped", func() bool { r.d.agents.isAlive(0); return len(r.d.agents.pids) == 0 })
}

// until waits for a condition. Goroutines other than the test's own may call it.
func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	err := testkit.Poll(func() error {
		if !holds() {
			return errors.New("the condition is still false")
		}
		return nil
	})
	if err != nil {
		r.t.Errorf("waiting for %q: %v", what, err)
	}
}

func (r *rig) report(p relay.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, p)
}

func (r *rig) configure(servers ...relay.Server) {
	r.t.Helper()
	if len(servers) == 0 {
		servers = []relay.Server{server("a", r.a, "i"), server("b", r.b)}
	}
	if err := r.d.Configure(r.t.Context(), servers); err != nil {
		r.t.Fatal(err)
	}
}

// running waits until the instance runs on a server, and checks that it does not run on the other.
func (r *rig) running(path string) {
	r.t.Helper()
	r.until("an agent is running in "+path,
		func() bool { ok, err := AgentRunning(filepath.Join(path, "i")); return ok && err == nil })
	other := r.a
	if path == r.a {
		other = r.b
	}
	if ok, _ := AgentRunning(filepath.Join(other, "i")); ok {
		r.t.Errorf("an agent is also running in %s", other)
	}
	before, _ := os.ReadFile(filepath.Join(path, "i/volumes/data/now"))
	r.until("the command is running in "+path, func() bool {
		now, _ := os.ReadFile(filepath.Join(path, "i/volumes/data/now"))
		return len(now) > 0 && string(now) != string(before)
	})
}

// listing returns the content of a directory, without the files of agents and commands.
func listing(t testing.TB, root string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch base := filepath.Base(rel); {
		case strings.HasPrefix(base, agentFilePrefix), base == fileOutput, base == "log", base == "now":
			return nil
		}
		line := rel + " " + d.Type().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + strconv.Quote(string(data[:min(len(data), 60)])) + strconv.Itoa(len(data))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// nothingLeft checks that a server contains nothing of the instance except the lease.
func (r *rig) nothingLeft(path string) {
	r.t.Helper()
	if ok, _ := exists(filepath.Join(path, "i")); ok {
		r.t.Errorf("%s/i is still there", path)
	}
	r.workEmpty(path)
}

func (r *rig) workEmpty(path string) {
	r.t.Helper()
	leases, err := os.ReadDir(filepath.Join(path, dirFence, "i"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(leases) > 1 {
		r.t.Errorf("got leases %v and error %v, want at most one lease", leases, err)
	}
	for _, l := range leases {
		left, _ := os.ReadDir(filepath.Join(path, dirFence, "i", l.Name()))
		for _, e := range left {
			if e.Name() != fileJob {
				r.t.Errorf("%s/%s: %s is left in the work directory", path, l.Name(), e.Name())
			}
		}
	}
}
