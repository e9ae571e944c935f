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

// points are all places between two steps on the way to the destination, and whether it is reached from there on.
var points = []struct {
	name    string
	forward bool // what was begun is completed, even if it should be undone
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
	{"clean", true}, // the command has run at the destination
	{"given up", true},
}

// killAt runs the migration in a process that is killed at a point.
func (r *rig) killAt(point string) {
	r.t.Helper()
	data, err := json.Marshal(order{Migration: r.m, DieAt: point})
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=driver", atOnce)
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

// killAfter does so after a time, if it is not over by then.
func (r *rig) killAfter(d time.Duration) {
	r.t.Helper()
	data, err := json.Marshal(order{Migration: r.m})
	must(r.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=driver", atOnce)
	cmd.Stdin = bytes.NewReader(data)
	must(r.t, cmd.Start())
	kill := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // it may have ended in any way
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
			r.halfWritten()
			// The daemon comes up again, and other nodes with it: they leave alone what is being migrated.
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
			r.halfWritten()
			r.m.Undo = true
			r.settled(r.d.Migrate(t.Context(), r.m, r.report), p.forward, want)
		})
	}
}

// halfWritten leaves in each work folder what a process leaves that is killed while it writes the job's note.
func (r *rig) halfWritten() {
	r.t.Helper()
	for _, server := range []string{r.a, r.b} {
		folders, err := filepath.Glob(filepath.Join(server, fenceFolder, "i", "*"))
		must(r.t, err)
		for _, folder := range folders {
			must(r.t, os.WriteFile(filepath.Join(folder, fileJob+".123"), []byte("{"), 0o600))
		}
	}
}

// settled checks how an undone migration has ended.
func (r *rig) settled(err error, forward bool, want string) {
	r.t.Helper()
	from, to := r.b, r.a
	if forward {
		from, to = r.a, r.b
	}
	if (err == nil) != forward || relay.IsIndeterminate(err) || errors.Is(err, relay.ErrSuperseded) {
		r.t.Errorf("error %v", err)
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

// An undo can be killed too.
func TestMigrate_UndoContinuesAfterKill(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"back", "stopped again", "taken back", "restored"} {
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

// A process that is stopped at a point, and continues after another one took over, changes nothing.
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
				testOvertaken(t, p.name, undo, p.forward || !undo)
			})
		}
	}
}

func testOvertaken(t *testing.T, point string, undo, forward bool) {
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
		t.Errorf("the overtaken one returned %v", err)
	}
	if after := listing(t, r.a) + listing(t, r.b); after != before {
		t.Errorf("the overtaken one has changed\n%s\nto\n%s", before, after)
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
func (r *rig) failed(err error, want string, says ...string) {
	r.t.Helper()
	if err == nil {
		r.t.Fatal("no error")
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			r.t.Errorf("%q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		r.t.Errorf("%q has more than one line", err)
	}
	r.settled(err, false, want)
}

func TestMigrate_FailureRestoresSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(r *rig)
		point   string
		do      func(r *rig) // at that point
		says    []string
		want    func(r *rig) // what becomes of the contents
	}{
		"a file changes after it was copied": {
			point: "verify",
			do: func(r *rig) {
				f, err := os.OpenFile(filepath.Join(r.a, fenceFolder, "i/1/instance/volumes/data/file"), os.O_WRONLY, 0)
				if err != nil {
					r.t.Fatal(err)
				}
				_, err = f.WriteString("CONTENTS")
				if err := errors.Join(err, f.Close()); err != nil {
					r.t.Error(err)
				}
			},
			says: []string{"volumes/data/file ", "changed"},
		},
		"a file comes": {
			point: "verify",
			do:    func(r *rig) { r.write("../a/.hubrelay/i/1/instance/volumes/data/more", "more") },
			says:  []string{"volumes/data ", "changed"},
		},
		"a file vanishes": {
			point: "verify",
			do: func(r *rig) {
				if err := os.Remove(filepath.Join(r.a, fenceFolder, "i/1/instance/notes.txt")); err != nil {
					r.t.Error(err)
				}
			},
			says: []string{"notes.txt ", "changed"},
		},
		"the copy is damaged": {
			point: "verify",
			do: func(r *rig) {
				found, err := filepath.Glob(filepath.Join(r.b, fenceFolder, "i/1/incoming-*/tree/volumes/data/file"))
				if err != nil || len(found) != 1 {
					r.t.Error(found, err)
					return
				}
				if err := os.WriteFile(found[0], []byte("CONTENTS"), 0); err != nil {
					r.t.Error(err)
				}
			},
			says: []string{"volumes/data/file ", "server b", "disk"},
		},
		"the destination vanishes": {
			point: "file",
			do: func(r *rig) {
				if err := os.Rename(r.b, r.b+"-away"); err != nil {
					r.t.Error(err)
				}
			},
			says: []string{"server b"},
		},
		"something is in its place": {
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
			says: []string{"server b", "/b/i", "move it away"},
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
			if name == "something is in its place" {
				if err := os.Rename(filepath.Join(r.b, "i"), filepath.Join(r.b, "j")); err != nil {
					t.Fatal("it was taken away: ", err)
				}
			}
			r.failed(err, r.contents(r.a), c.says...)
		})
	}
}

// An instance that one job may have put in its place at a server is not taken elsewhere by another.
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
