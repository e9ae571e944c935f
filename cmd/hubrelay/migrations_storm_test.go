package main_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// storm is the number of migrations with a failure. `go test ./cmd/hubrelay -run MigrationStorm -storm 210`
// interrupts each step five times in each way.
var storm = flag.Int("storm", 10, "how many migrations TestLongMigrationStorm strikes")

// failure is a failure in a step of a migration.
type failure struct{ what, step string }

func blows(n int, random *rand.Rand) []failure {
	var list []failure
	for len(list) < n {
		var round []failure
		for _, what := range []string{
			"a node is killed", "all nodes are killed", "the drivers are killed",
			"redis is killed", "a node is stopped", "the job is canceled",
		} {
			for _, step := range []string{"", "claim", "stop", "copy", "verify", "switch", "start"} {
				round = append(round, failure{what, step})
			}
		}
		random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		list = append(list, round...)
	}
	return list[:n]
}

// TestLongMigrationStorm interrupts migrations. Each either completes, or fails with the instance on its old server.
// The instance never runs twice and keeps its volumes.
func TestLongMigrationStorm(t *testing.T) {
	t.Parallel()
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	m := newMigrations(t, 2)
	ends := map[relay.JobState]int{}
	for i, b := range blows(*storm, random) {
		from := m.currentServer()
		to := map[string]string{"a": "b", "b": "a"}[from]
		began := time.Now()
		id := m.migrate(random.IntN(len(m.nodes)), to)
		m.await(id, b.step)
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) // random moments
		mend := m.strike(b.what, id, random)
		j := m.over(id)
		mend()
		ends[j.State.Current]++
		t.Logf("%d: %s after %q: %s, %s, %.1f s", i, b.what, b.step, j.State.Current, j.State.Error,
			time.Since(began).Seconds())
		want := to
		if j.State.Current != relay.JobCompleted {
			want = from
			if j.State.Current != relay.JobError || j.State.Error == nil {
				t.Errorf("the job ended as %+v", j.State)
			}
		}
		if now := m.currentServer(); now != want {
			t.Errorf("the inventory says %s, want %s", now, want)
		}
		m.expectOn(want)
		if t.Failed() {
			t.Fatalf("migration %d, from %s to %s: %s after %q, job %s", i, from, to, b.what, b.step, id)
		}
	}
	if ends[relay.JobCompleted] == 0 {
		t.Errorf("no migration was completed: %v", ends)
	}
}

// await waits until the log contains the end of a step, or without a step the start of the job, or the end of the
// job.
func (m *migrations) await(id, step string) {
	m.t.Helper()
	after := "0-0"
	testkit.Eventually(m.t, "step "+step+" of "+id, func() error {
		entries, err := m.store.XRangeN(m.t.Context(), "hubrelay:log:{0}", "("+after, "+", 1000).Result()
		if err != nil {
			return err
		}
		for _, entry := range entries {
			after = entry.ID
			var e struct {
				Object struct {
					Job   string `json:"job_id"`
					State relay.JobState
					Task  *relay.JobTask
				}
			}
			text, _ := entry.Values["data"].(string)
			if err := json.Unmarshal([]byte(text), &e); err != nil || e.Object.Job != id {
				continue
			}
			o := e.Object
			if o.State.IsFinal() || step == "" && o.State == relay.JobRunning ||
				o.Task != nil && o.Task.ID == step && o.Task.State.Current == relay.JobCompleted {
				return nil
			}
		}
		return fmt.Errorf("not told up to %s", after)
	})
}

// strike causes the failure. The returned function repairs it.
func (m *migrations) strike(what, id string, random *rand.Rand) (mend func()) {
	m.t.Helper()
	one := random.IntN(len(m.nodes))
	restart := func(nodes ...int) func() {
		for _, i := range nodes {
			m.nodes[i].Kill()
		}
		for _, i := range nodes {
			m.nodes[i] = serveFile(m.t, filepath.Join(m.dir, "hubrelay.yaml"))
		}
		return func() {}
	}
	switch what {
	case "the job is canceled":
		m.cancelWithStoppedDrivers(random.IntN(len(m.nodes)), id)
	case "a node is killed":
		return restart(one)
	case "all nodes are killed":
		return restart(0, 1)
	case "redis is killed":
		m.redis.Restart()
	case "the drivers are killed":
		for _, pid := range m.drivers() {
			if pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	case "a node is stopped":
		// The process of the worker and its driver. It continues after another node has finished its work.
		stopped := []int{m.nodes[one].Cmd.Process.Pid, m.drivers()[one]}
		stopped = slices.DeleteFunc(stopped, func(pid int) bool { return pid == 0 })
		for _, pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		return func() {
			for _, pid := range stopped {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			testkit.Eventually(m.t, "the node that was stopped", m.nodes[one].Ready(200))
		}
	}
	return func() {}
}
