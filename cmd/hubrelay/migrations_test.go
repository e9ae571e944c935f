package main_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// migrations is a test with two clusters of directories and one instance, web-1 of the container web, which must
// never run twice.
type migrations struct {
	t     *testing.T
	dir   string
	redis *redistest.Server
	store *redis.Client
	nodes []*daemon
	files map[string]string // checksums of the files in the volume
}

const tasksPath = "/v1/containers/web/instances/web-1/tasks"

func newMigrations(t *testing.T, nodes int) *migrations {
	t.Helper()
	m := newSite(t)
	m.redis = redistest.Start(t)
	m.store = redisAt(t, m.redis.Socket)
	file := writeFile(t, m.dir, "hubrelay.yaml",
		withMigrationCapability(daemonConfig{
			redis: fmt.Sprintf("url: %q", m.redis.URL()),
			keys:  m.section(),
		}.renderYAML()))
	for range nodes {
		m.nodes = append(m.nodes, serveFile(t, file))
	}
	return m
}

// newSite creates the clusters without nodes.
func newSite(t *testing.T) *migrations {
	t.Helper()
	m := &migrations{t: t, dir: tempDir(t)}
	for _, server := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(m.dir, server), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.instance()
	// Registered first, so it runs after the daemons have ended. Agents outlive daemons.
	t.Cleanup(func() { killAgents(t, m.dir) })
	writeFile(t, m.dir, "inventory.yaml", fmt.Sprintf(`clusters:
  one: {servers: {a: {path: %[1]s/a}, b: {path: %[1]s/b}}}
  two: {servers: {c: {path: %[1]s/c}}}
containers:
  web: {hub_id: hub-1, account_id: acme, environment_id: env, stateful: true, instances: {web-1: {server_id: a}}}
`, m.dir))
	return m
}

// section returns the configuration of the clusters.
func (m *migrations) section() string {
	return fmt.Sprintf("migration: {driver: {command: [\"builtin:directory\"]}, inventory_file: %q}\n",
		filepath.Join(m.dir, "inventory.yaml"))
}

// withMigrationCapability adds the capability to migrate to the key of the platform.
func withMigrationCapability(configuration string) string {
	return strings.Replace(configuration, "capabilities: [notifications-publish]",
		"capabilities: [notifications-publish, containers-instances-migrate]", 1)
}

// instance creates web-1 on server a. Its command takes a lock, and reports if another process has it.
func (m *migrations) instance() {
	m.t.Helper()
	home := filepath.Join(m.dir, "a", "web-1")
	data := filepath.Join(home, "volumes", "data")
	if err := os.MkdirAll(filepath.Join(data, "deep"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	for _, name := range []string{"1", "2", "deep/3", "deep/4"} {
		content := make([]byte, 4<<20)
		_, _ = random.Read(content)
		writeFile(m.t, data, name, string(content))
	}
	command := fmt.Sprintf(`flock -n -E 9 %[1]s/lock sh -c `+
		`'while date +%%s%%N >> volumes/beat/at; do sleep 0.02; done' %[1]s; `+ // the last argument is for killAgents
		`[ $? = 9 ] && echo twice >> %[1]s/twice`, m.dir)
	text, err := json.Marshal(map[string]any{"command": []string{"sh", "-c", command}})
	if err != nil {
		m.t.Fatal(err)
	}
	writeFile(m.t, home, "instance.json", string(text))
	if err := os.Mkdir(filepath.Join(home, "volumes", "beat"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.files = checksums(m.t, data)
}

func checksums(t *testing.T, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		sums[path] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return sums
}

// killAgents kills the agents of the instances below a directory, and the commands that name it.
func killAgents(t *testing.T, dir string) {
	t.Helper()
	testkit.WaitFor(t, "the agents to end", func() bool {
		ended := true
		for pid, args := range processes(t) {
			if strings.Contains(args, dir) { // an agent may start a command before it is killed
				_ = syscall.Kill(pid, syscall.SIGKILL)
				ended = false
			}
		}
		return ended
	})
}

// processes returns the command lines of all processes.
func processes(t *testing.T) map[int]string {
	t.Helper()
	found := map[int]string{}
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && len(text) > 0 { // the process has ended
			found[pid] = strings.ReplaceAll(string(text), "\x00", " ")
		}
	}
	return found
}

// drivers returns the process id of the driver of each node, or 0 if it does not run.
func (m *migrations) drivers() []int {
	m.t.Helper()
	pids := make([]int, len(m.nodes))
	for pid, args := range processes(m.t) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !strings.Contains(args, " directory") {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parent, _ := strconv.Atoi(fields[1])
		for i, n := range m.nodes {
			if n.Cmd.Process.Pid == parent {
				pids[i] = pid
			}
		}
	}
	return pids
}

// migrate requests a migration at one node and returns the id of the job.
func (m *migrations) migrate(node int, to string) string {
	m.t.Helper()
	r := m.nodes[node].Do(m.t, m.request(to))
	var answer struct{ Data relay.TaskDescriptor }
	if err := json.Unmarshal([]byte(r.Body), &answer); err != nil || r.Status != http.StatusAccepted ||
		answer.Data.Action != "migrate" {
		m.t.Fatalf("migrate to %s was answered %d %s", to, r.Status, r.Body)
	}
	return answer.Data.JobID
}

func (m *migrations) request(to string) testkit.Request {
	return testkit.Request{
		Method: "POST", Path: tasksPath, Key: opsKey, Hub: "hub-1", ContentType: "application/json",
		Body: `{"action":"migrate","value":{"destination_server_id":"` + to + `","stateful":{"copy_volumes":true}}}`,
	}
}

// job requests a job from any node.
func (m *migrations) job(id string) (relay.Job, error) {
	var err error
	for _, n := range m.nodes {
		var r testkit.Reply
		ctx, cancel := context.WithTimeout(m.t.Context(), time.Second) // the node may be stopped
		defer cancel()
		r, err = n.Try(ctx, testkit.Request{Method: "GET", Path: "/v1/jobs/" + id, Key: opsKey, Hub: "hub-1"})
		if err != nil {
			continue
		}
		var answer struct{ Data relay.Job }
		if err = json.Unmarshal([]byte(r.Body), &answer); err == nil && r.Status == http.StatusOK {
			return answer.Data, nil
		}
		err = fmt.Errorf("job %s: %d %s", id, r.Status, r.Body)
	}
	return relay.Job{}, err
}

func (m *migrations) over(id string) relay.Job {
	m.t.Helper()
	var j relay.Job
	testkit.Eventually(m.t, "the job "+id+" to be over", func() (err error) {
		if j, err = m.job(id); err == nil && !j.State.Current.IsFinal() {
			err = fmt.Errorf("it is %s: %s, %+v", j.State.Current, j.State.Error, j.Tasks)
		}
		return err
	})
	return j
}

// expectOn checks that the instance is complete and runs on this server only.
func (m *migrations) expectOn(server string) {
	m.t.Helper()
	other := map[string]string{"a": "b", "b": "a"}[server]
	home := filepath.Join(m.dir, server, "web-1")
	if _, err := os.Lstat(filepath.Join(m.dir, other, "web-1")); err == nil {
		m.t.Errorf("the instance is on %s too", other)
	}
	if sums := checksums(m.t, filepath.Join(home, "volumes", "data")); !maps.Equal(sums, m.files) {
		m.t.Errorf("the volume on %s has %v, want %v", server, sums, m.files)
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(home, "volumes", "beat", "at"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	testkit.Eventually(m.t, "the command to run on "+server, func() error {
		if now := size(); now <= before {
			return fmt.Errorf("it has written %d bytes, and now %d", before, now)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(m.dir, "twice")); err == nil {
		m.t.Error("the instance ran twice at once")
	}
}

// currentServer returns the server of the instance in the inventory.
func (m *migrations) currentServer() string {
	m.t.Helper()
	server, err := m.store.HGet(m.t.Context(), "hubrelay:moved:{0}", "web/web-1").Result()
	if err != nil {
		return "a"
	}
	return server
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	m := newMigrations(t, 1)
	m.expectOn("a")
	socket := m.nodes[0].connect(t, opsKey, "hub-1", "")
	env := []string{"HUBRELAY_URL=http://" + m.nodes[0].Public, "HUBRELAY_KEY=" + opsKey, "HUBRELAY_HUB=hub-1"}
	if out, errOut, code := call(t, env, "", "jobs", "list", "web", "web-1"); code != 0 || out != "" ||
		errOut != "no jobs of this instance\n" {
		t.Errorf("jobs list without jobs ended with %d: %s%s", code, out, errOut)
	}
	out, errOut, code := call(t, env, "", "migrate", "web", "web-1", "--to", "b", "--copy-volumes", "--wait")
	if code != 0 || !strings.HasSuffix(out, "\ncompleted\n") || !strings.Contains(errOut, "Copy files: done") ||
		strings.Contains(errOut, "completed") {
		t.Errorf("migrate --wait ended with %d:\n%s%s", code, out, errOut)
	}
	m.expectOn("b")
	id, _, _ := strings.Cut(out, "\n")
	var told []string
	testkit.Eventually(t, "the end of the job on the socket", func() error {
		told = told[:0]
		frames, _ := socket.snapshot()
		for _, f := range frames {
			var e struct {
				Topic  string
				Object struct {
					State string
					Task  *relay.JobTask
				}
			}
			if err := json.Unmarshal([]byte(f), &e); err != nil {
				return err
			}
			if e.Object.Task == nil {
				told = append(told, e.Topic+" "+e.Object.State)
			}
		}
		if len(told) < 7 {
			return fmt.Errorf("it told %q", told)
		}
		return nil
	})
	want := []string{
		"job.created new", "job.state.changed queued", "job.state.changed scheduled", "job.state.changed running",
		"container.instance.state.changed migrating", "container.instance.state.changed running",
		"job.state.changed completed",
	}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("the socket told %q, want %q", told, want)
	}
	if out, errOut, code := call(t, env, "", "jobs", "show", id); code != 0 || !strings.Contains(out, "completed") ||
		!strings.Contains(out, "Verify checksums") {
		t.Errorf("jobs show ended with %d:\n%s%s", code, out, errOut)
	}
	if out, _, code := call(t, env, "", "jobs", "list", "web", "web-1"); code != 0 || out != id+"\n" {
		t.Errorf("jobs list ended with %d: %s", code, out)
	}
	// Operators need no API key.
	admin := []string{"HUBRELAY_ADMIN=" + m.nodes[0].Admin}
	for args, want := range map[string]string{
		"jobs list": id, "jobs list --hub hub-1 --state completed,error": "completed ", "jobs list --state running": "no jobs",
		"jobs list -o jsonl": `"instance_id":"web-1"`, "jobs show " + id: "Verify checksums",
		"jobs show -o json " + id: `"destination_server_id":"b"`,
	} {
		if out, errOut, code := call(t, admin, "", strings.Fields(args)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s ended with %d, want %q:\n%s%s", args, code, want, out, errOut)
		}
	}
	for args, want := range map[string]string{
		"jobs list web": "INSTANCE is missing", "jobs list web web-1 --state error": "an API key is required",
		"jobs show --wait " + id: "an API key is required",
	} {
		if out, errOut, code := call(t, admin, "", strings.Fields(args)...); code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%s ended with %d, want %q:\n%s%s", args, code, want, out, errOut)
		}
	}
	for to, want := range map[string]string{
		"b": "409.invalid-state", "c": "422.not-compatible",
		"nowhere": "422.invalid-argument",
	} {
		if _, errOut, code := call(t, env, "", "migrate", "web", "web-1", "--to", to); code != 1 ||
			!strings.Contains(errOut, want) {
			t.Errorf("migrate to %s ended with %d: %s", to, code, errOut)
		}
	}
	if _, errOut, code := call(t, env[:2], "", "jobs", "list", "web", "web-1"); code != 1 ||
		!strings.Contains(errOut, "set HUBRELAY_HUB or --hub") {
		t.Errorf("jobs list without a hub ended with %d: %s", code, errOut)
	}
	// An operator reads the error of the job.
	writeFile(t, filepath.Join(m.dir, "a"), "web-1", "in the way")
	_, errOut, code = call(t, env, "", "migrate", "web", "web-1", "--to", "a", "--copy-volumes", "--wait")
	if code != 1 || !strings.Contains(errOut, "has something in the place of the instance") {
		t.Errorf("migrate to an occupied place ended with %d: %s", code, errOut)
	}
	if err := os.Remove(filepath.Join(m.dir, "a", "web-1")); err != nil {
		t.Fatal(err)
	}
	m.expectOn("b")
}

// An operator cancels a migration, and the driver moves the instance back.
func TestJobsCancel(t *testing.T) {
	t.Parallel()
	m := newMigrations(t, 1)
	m.expectOn("a")
	m.signalDrivers(syscall.SIGSTOP) // so the migration cannot be completed before it is canceled
	id := m.migrate(0, "b")
	m.await(id, "")
	if out := m.cancelWithStoppedDrivers(0, id); out != "job "+id+" is being canceled; see 'hubrelay jobs show "+id+"'\n" {
		t.Errorf("got %q", out)
	}
	const want = "the migration was canceled by an operator; the instance is back on server a"
	if j := m.over(id); j.State.Current != relay.JobError || j.State.Error.String() != want {
		t.Errorf("got %+v", j.State)
	}
	m.expectOn("a")
	again := []string{"jobs", "cancel", id, "--admin", m.nodes[0].Admin}
	if out, errOut, code := call(t, nil, "", again...); code != 0 || out != "job "+id+" was rolled back\n" {
		t.Errorf("cancel it again: got %d, %s%s", code, out, errOut)
	}
	next := m.migrate(0, "b")
	if j := m.over(next); j.State.Current != relay.JobCompleted {
		t.Errorf("the next migration: got %+v", j.State)
	}
	again[2] = next
	if _, errOut, code := call(t, nil, "", again...); code != 1 ||
		!strings.Contains(errOut, "the job has ended (completed), so it cannot be canceled") {
		t.Errorf("cancel a completed job: got %d, %s", code, errOut)
	}
	m.expectOn("b")
}

// cancelWithStoppedDrivers cancels a job while its driver cannot complete it, unless it has ended, and returns the output of
// the command.
func (m *migrations) cancelWithStoppedDrivers(node int, id string) (out string) {
	m.t.Helper()
	m.signalDrivers(syscall.SIGSTOP)
	defer m.signalDrivers(syscall.SIGCONT)
	out, errOut, code := call(m.t, nil, "", "jobs", "cancel", id, "--admin", m.nodes[node].Admin)
	if code != 0 {
		if !strings.Contains(errOut, "the job has ended (completed)") {
			m.t.Errorf("jobs cancel: got %d, %s", code, errOut)
		}
		return out
	}
	testkit.Eventually(m.t, "a worker to stop the driver", func() error {
		for _, n := range m.nodes {
			for line := range strings.Lines(n.Err.String()) {
				if strings.Contains(line, "migration was canceled") && strings.Contains(line, id) {
					return nil
				}
			}
		}
		if j, err := m.job(id); err != nil || !j.State.Current.IsFinal() {
			return errors.Join(fmt.Errorf("got %+v", j.State), err)
		}
		return nil
	})
	return out
}

// signalDrivers sends a signal to the drivers of all nodes.
func (m *migrations) signalDrivers(s syscall.Signal) {
	m.t.Helper()
	for _, pid := range m.drivers() {
		if pid > 0 {
			_ = syscall.Kill(pid, s)
		}
	}
}
