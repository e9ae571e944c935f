package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// points are the step hooks of a successful migration.
var points = []struct {
	name    string
	forward bool // from this point on, an undo completes the migration
}{
	{"claim", false},
	{"stop", false},
	{"stopped", false},
	{"copy", false},
	{"file", false},
	{"verify", false},
	{"verified", false},
	{"switch", false},
	{"marked", false},
	{"start", false},
	{"clean", true}, // the command has run on the destination
	{"given up", true},
}

// killAt runs the migration in a process that kills itself at the given point.
func (r *rig) killAt(point string) {
	r.t.Helper()
	data, err := json.Marshal(driverTask{Migration: r.m, DieAt: point})
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=driver", noExitDelay)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		r.t.Fatalf("at %s: %v %s", point, err, out)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		r.t.Fatalf("at %s: %v %s", point, err, out)
	}
	r.m.Lease++
}

// killAfter runs the migration in a process and kills it after the given time.
func (r *rig) killAfter(d time.Duration) {
	r.t.Helper()
	data, err := json.Marshal(driverTask{Migration: r.m})
	must(r.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=driver", noExitDelay)
	cmd.Stdin = bytes.NewReader(data)
	must(r.t, cmd.Start())
	kill := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // the migration may have completed before
	kill.Stop()
	r.m.Lease++
}

func (r *rig) contents(path string) string { return listing(r.t, filepath.Join(path, "i")) }

func TestMigrate_ContinuesAfterKill(t *testing.T) {
	t.Parallel()
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "/bin/sh", "-c", ticker)
			r.configure()
			r.running(r.a)
			want := r.contents(r.a)
			r.killAt(p.name)
			r.writePartialNotes()
			// A restarted driver does not start an instance that is being migrated.
			r.configure(server("a", r.a, "i"), server("b", r.b))
			if err := r.d.Migrate(t.Context(), r.m, r.report); err != nil {
				t.Fatal(err)
			}
			r.running(r.b)
			if got := r.contents(r.b); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			r.nothingLeft(r.a)
			r.workEmpty(r.b)
		})
	}
}

func TestMigrate_UndoAfterKill(t *testing.T) {
	t.Parallel()
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "/bin/sh", "-c", ticker)
			r.configure()
			r.running(r.a)
			want := r.contents(r.a)
			r.killAt(p.name)
			r.writePartialNotes()
			r.m.Undo = true
			r.settled(r.d.Migrate(t.Context(), r.m, r.report), p.forward, want)
		})
	}
}

// writePartialNotes creates in each work directory the file of a process that was killed while it wrote the job's note.
func (r *rig) writePartialNotes() {
	r.t.Helper()
	for _, server := range []string{r.a, r.b} {
		workDirs, err := filepath.Glob(filepath.Join(server, dirFence, "i", "*"))
		must(r.t, err)
		for _, dir := range workDirs {
			must(r.t, os.WriteFile(filepath.Join(dir, fileJob+".123"), []byte("{"), 0o600))
		}
	}
}

// settled checks the result of a migration: the instance runs on the destination if forward is set, and on the source
// otherwise.
func (r *rig) settled(err error, forward bool, want string) {
	r.t.Helper()
	from, to := r.b, r.a
	if forward {
		from, to = r.a, r.b
	}
	if (err == nil) != forward || relay.IsIndeterminate(err) || errors.Is(err, relay.ErrSuperseded) {
		r.t.Errorf("got error %v", err)
	}
	r.running(to)
	if got := r.contents(to); got != want {
		r.t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.nothingLeft(from)
	r.workEmpty(to)
}

// After a kill at any point, the next process continues or undoes the migration.
func TestMigrate_ContinuesAfterKillsAtRandomTimes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 5))
			r := newRig(t, "/bin/sh", "-c", ticker)
			fill(t, filepath.Join(r.a, "i/volumes/data/many"), 500, 10_000)
			r.configure()
			r.running(r.a)
			want := r.contents(r.a)
			for range 3 {
				r.killAfter(time.Duration(rnd.IntN(700)) * time.Millisecond)
				r.m.Undo = r.m.Undo || rnd.IntN(6) == 0
			}
			err := r.d.Migrate(t.Context(), r.m, r.report)
			t.Log(err)
			r.settled(err, err == nil, want)
		})
	}
}

// The next process also continues an undo that was killed.
func TestMigrate_UndoContinuesAfterKill(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"back", "stopped again", "copy removed", "restored"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "/bin/sh", "-c", ticker)
			r.configure()
			r.running(r.a)
			want := r.contents(r.a)
			r.killAt("start")
			r.m.Undo = true
			r.killAt(point)
			r.settled(r.d.Migrate(t.Context(), r.m, r.report), false, want)
		})
	}
}

// A process that is suspended at any point, and resumes after another process took over, changes nothing.
func TestMigrate_SupersededProcessChangesNothing(t *testing.T) {
	t.Parallel()
	for _, undo := range []bool{false, true} {
		for _, p := range points[1:] {
			name := p.name + " completed"
			if undo {
				name = p.name + " undone"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testSuperseded(t, p.name, undo, p.forward || !undo)
			})
		}
	}
}

func testSuperseded(t *testing.T, point string, undo, forward bool) {
	r := newRig(t, "/bin/sh", "-c", ticker)
	r.configure()
	r.running(r.a)
	want := r.contents(r.a)
	late, reached, wake := newDriver(), make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	late.stepHook = func(p string) {
		if p == point && once.CompareAndSwap(false, true) {
			close(reached)
			<-wake
		}
	}
	result := make(chan error, 1)
	m := r.m
	go func() { result <- late.Migrate(t.Context(), m, func(relay.Progress) {}) }()
	<-reached
	r.m.Lease, r.m.Undo = 2, undo
	r.settled(r.d.Migrate(t.Context(), r.m, r.report), forward, want)
	before := listing(t, r.a) + listing(t, r.b)
	close(wake)
	if err := <-result; !errors.Is(err, relay.ErrSuperseded) {
		t.Errorf("the superseded process returned %v, want ErrSuperseded", err)
	}
	if after := listing(t, r.a) + listing(t, r.b); after != before {
		t.Errorf("the superseded process changed\n%s\nto\n%s", before, after)
	}
	if forward {
		r.running(r.b)
	} else {
		r.running(r.a)
	}
	r.until("agents are reaped",
		func() bool { late.agents.isAlive(0); return len(late.agents.pids) == 0 || forward })
	r.stopAll()
	r.until("agents are reaped", func() bool { late.agents.isAlive(0); return len(late.agents.pids) == 0 })
}

// failed checks that the instance runs on the source again, and that the error contains the texts.
func (r *rig) failed(err error, want string, texts ...string) {
	r.t.Helper()
	if err == nil {
		r.t.Fatal("got no error")
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			r.t.Errorf("got error %q, want it to contain %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		r.t.Errorf("error %q has more than one line", err)
	}
	r.settled(err, false, want)
}

func TestMigrate_FailureRestoresSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(r *rig)
		point   string
		do      func(r *rig) // called at that point
		texts   []string
	}{
		"a file changes after it was copied": {
			point: "verify",
			do: func(r *rig) {
				f, err := os.OpenFile(filepath.Join(r.a, dirFence, "i/1/instance/volumes/data/file"), os.O_WRONLY, 0)
				if err != nil {
					r.t.Fatal(err)
				}
				_, err = f.WriteString("CONTENTS")
				if err := errors.Join(err, f.Close()); err != nil {
					r.t.Error(err)
				}
			},
			texts: []string{"volumes/data/file ", "changed"},
		},
		"a file is added": {
			point: "verify",
			do:    func(r *rig) { r.write("../a/.hubrelay/i/1/instance/volumes/data/more", "more") },
			texts: []string{"volumes/data ", "changed"},
		},
		"a file is removed": {
			point: "verify",
			do: func(r *rig) {
				if err := os.Remove(filepath.Join(r.a, dirFence, "i/1/instance/notes.txt")); err != nil {
					r.t.Error(err)
				}
			},
			texts: []string{"notes.txt ", "changed"},
		},
		"the copy is damaged": {
			point: "verify",
			do: func(r *rig) {
				found, err := filepath.Glob(filepath.Join(r.b, dirFence, "i/1/incoming-*/tree/volumes/data/file"))
				if err != nil || len(found) != 1 {
					r.t.Error(found, err)
					return
				}
				if err := os.WriteFile(found[0], []byte("CONTENTS"), 0); err != nil {
					r.t.Error(err)
				}
			},
			texts: []string{"volumes/data/file ", "server b", "disk"},
		},
		"the destination disappears": {
			point: "file",
			do: func(r *rig) {
				if err := os.Rename(r.b, r.b+"-away"); err != nil {
					r.t.Error(err)
				}
			},
			texts: []string{"server b"},
		},
		"the path on the destination is taken": {
			prepare: func(r *rig) {
				if err := os.MkdirAll(filepath.Join(r.b, "j/volumes"), 0o755); err != nil {
					r.t.Fatal(err)
				}
			},
			point: "marked",
			do: func(r *rig) {
				if err := os.Rename(filepath.Join(r.b, "j"), filepath.Join(r.b, "i")); err != nil {
					r.t.Error(err)
				}
			},
			texts: []string{"server b", "/b/i", "move it away"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "/bin/sh", "-c", ticker)
			if c.prepare != nil {
				c.prepare(r)
			}
			r.configure()
			r.running(r.a)
			var once atomic.Bool
			r.d.stepHook = func(p string) {
				if p == c.point && once.CompareAndSwap(false, true) {
					c.do(r)
				}
			}
			err := r.d.Migrate(t.Context(), r.m, r.report)
			if name == "the path on the destination is taken" {
				if err := os.Rename(filepath.Join(r.b, "i"), filepath.Join(r.b, "j")); err != nil {
					t.Fatal("the other directory was removed: ", err)
				}
			}
			r.failed(err, r.contents(r.a), c.texts...)
		})
	}
}

// A job does not move an instance that another job may have moved to a different server.
func TestMigrate_RejectsInstanceOfAnotherJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	want := r.contents(r.a)
	c := filepath.Join(filepath.Dir(r.a), "c")
	must(t, os.Mkdir(c, 0o755))
	r.killAt("marked")
	first := r.m
	r.m.JobID, r.m.Destination = "another", server("c", c)
	for _, undo := range []bool{false, true} {
		r.m.Undo = undo
		err := r.d.Migrate(t.Context(), r.m, r.report)
		if !relay.IsIndeterminate(err) || !strings.Contains(err.Error(), "job job may have moved") {
			t.Error(err)
		}
		r.m.Lease++
	}
	first.Lease = r.m.Lease
	must(t, r.d.Migrate(t.Context(), first, r.report))
	if got := r.contents(r.b); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.nothingLeft(r.a)
	r.nothingLeft(c)
}
