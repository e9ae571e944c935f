//go:build linux

package docker

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// points are all places between two steps on the way to the destination, and whether it is reached from there on.
var points = []struct {
	name    string
	forward bool // what was begun is completed, even if it should be undone
}{
	{"claim", false},
	{"check", false},
	{"image", false},
	{"prepare", false},
	{"create", false},
	{"volumes created", false},
	{"stop", false},
	{"take away", false},
	{"taken away", false},
	{"unleashed", false},
	{"stopped", false},
	{"copy", false},
	{"copy volume", false},
	{"verify", false},
	{"start", false},
	{"left", false},
	{"started", true}, // the instance has run at the destination
	{"switch", true},
	{"clean", true},
	{"removed", true},
}

// underWay are points in the middle of a stream.
var underWay = []string{"copy under way", "verify under way"}

func TestMigrate_ContinuesAfterKill(t *testing.T) {
	t.Parallel()
	names := underWay
	for _, p := range points {
		names = append(names, p.name)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			want := r.listing(r.a)
			r.killAt(name)
			if err := r.migrate(); err != nil {
				t.Fatal(err)
			}
			r.alone(r.b, want)
		})
	}
}

func TestMigrate_UndoAfterKill(t *testing.T) {
	t.Parallel()
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			want := r.listing(r.a)
			r.killAt(p.name)
			r.m.Undo = true
			r.settled(r.migrate(), p.forward, want)
		})
	}
}

// An undo can be killed too.
func TestMigrate_UndoContinuesAfterKill(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"back", "discarded", "leashed", "restarted"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			want := r.listing(r.a)
			r.killAt("left")
			r.m.Undo = true
			r.killAt(point)
			r.settled(r.migrate(), false, want)
		})
	}
}

// What an earlier call has copied is not copied again, unless it was for another container.
func TestMigrate_ReusesCompletedCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	stop := errors.New("stop here")
	ctx, cancel := context.WithCancelCause(t.Context())
	r.d.between = func(p string) {
		if p == "verify" {
			cancel(stop)
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, ctx.Err()) {
		t.Fatal(err)
	}
	for _, p := range r.reports {
		if p.Completed {
			r.m.Done = append(r.m.Done, p)
		}
	}
	r.d.between, r.reports = func(string) {}, nil
	r.m.Lease++
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
	for _, p := range r.reports {
		if p.Step == stepCopy && p.Bytes > 0 {
			t.Fatal("it was copied again")
		}
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
	r := newRig(t, nil)
	want := r.listing(r.a)
	config := testConfig()
	late, reached, wake := New(&config), make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	late.between = func(p string) {
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
	r.settled(r.migrate(), forward, want)
	before := [][]string{r.left(r.a), r.left(r.b)}
	close(wake)
	if err := <-result; !errors.Is(err, relay.ErrSuperseded) {
		t.Errorf("the overtaken one returned %v", err)
	}
	after := [][]string{r.left(r.a), r.left(r.b)}
	if strings.Join(after[0], "\n") != strings.Join(before[0], "\n") ||
		strings.Join(after[1], "\n") != strings.Join(before[1], "\n") {
		t.Errorf("the overtaken one has changed\n%q\nto\n%q", before, after)
	}
	if forward {
		r.alone(r.b, want)
	} else {
		r.alone(r.a, want)
	}
}

// A process that stands still in the middle of a copy keeps its successor waiting, not its successor's successor.
func TestMigrate_SuspendedProcessDelaysOnlyItsSuccessor(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	frozen := r.process("copy under way", true)
	if err := frozen.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "it stands still", func() bool {
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(frozen.Process.Pid), "stat"))
		return bytes.Contains(status, []byte(") T "))
	})
	r.m.Lease = 2
	result := make(chan error, 1)
	claimed := make(chan struct{})
	r.d.between = func(p string) {
		if p == stepCheck {
			close(claimed)
		}
	}
	go func() { result <- r.migrate() }()
	<-claimed
	if err := frozen.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := frozen.Wait(); !isKilled(err) {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
}

func TestMigrate_RollsBackUnhealthyInstance(t *testing.T) {
	t.Parallel()
	check := func(o *client.ContainerCreateOptions) {
		o.Config.Healthcheck = &container.HealthConfig{
			Test: []string{"CMD", "/app", "blessed"}, Interval: 200 * time.Millisecond, Retries: 2,
		}
	}
	t.Run("at the destination", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, check)
		want := r.listing(r.a)
		r.m.CopyVolumes = false // the volume at the destination is empty
		r.failed(r.migrate(), want, "unhealthy on server b", "not blessed")
	})
	t.Run("too late", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(o *client.ContainerCreateOptions) {
			check(o)
			o.Config.Healthcheck.Retries = 1000
		})
		r.d.config.HealthTimeout = Duration(10 * time.Second)
		want := r.listing(r.a)
		r.m.CopyVolumes = false
		r.failed(r.migrate(), want, "not healthy on server b within 10s (health_timeout)", "not blessed")
	})
	t.Run("nowhere", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, check)
		want := r.listing(r.a)
		if err := r.migrate(); err != nil {
			t.Fatal(err)
		}
		r.alone(r.b, want)
	})
	t.Run("its command ends", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(o *client.ContainerCreateOptions) { o.Config.Cmd = []string{"/app", "fail"} })
		want := r.listing(r.a)
		r.d.config.Settle = Duration(time.Minute) // it ends again before
		r.m.CopyVolumes = false
		r.failed(r.migrate(), want, "does not stay up on server b", "status 7")
	})
	t.Run("its command ends once", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(o *client.ContainerCreateOptions) { o.Config.Cmd = []string{"/app", "stumble"} })
		want := r.listing(r.a)
		r.d.config.Settle = Duration(3 * time.Second)
		r.m.CopyVolumes = false
		err := r.migrate()
		r.failed(err, want, "does not stay up on server b: its command has ended")
		if strings.Contains(err.Error(), "status 0") {
			t.Errorf("%q names a status that nothing has ended with", err)
		}
	})
}

// A host dies on the way.
func TestMigrate_HostFails(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	for name, c := range map[string]death{
		"source in mid-copy": {
			folder: "c", source: true, point: "copying", unsettled: true,
			says: "server a",
		},
		"destination in mid-copy": {folder: "d", point: "copying", says: "server b"},
		"destination when it may run the instance": {
			folder: "e", point: "started", unsettled: true,
			says: "may run on server b", forward: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime.LockOSThread()                                          // see daemon.start
			dying, err := startDaemon(filepath.Dir(hostA.folder), c.folder) // a short name: a socket's path is limited
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := dying.stop(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
			})
			if err := dying.load(imageName, `CMD ["/app","serve"]`); err != nil {
				t.Fatal(err)
			}
			testHostDies(t, dying, c)
		})
	}
}

// death is which host dies when, and how the migration ends then.
type death struct {
	folder    string
	source    bool
	point     string
	unsettled bool
	says      string
	forward   bool // the host has started the instance when it was up again
}

func testHostDies(t *testing.T, dying *daemon, c death) {
	a, b := hostA, dying
	if c.source {
		a, b = dying, hostB
	}
	r := newRigOn(t, a, b, nil)
	want := r.listing(r.a)
	var once atomic.Bool
	reached := func(point string) {
		if point != c.point || !once.CompareAndSwap(false, true) {
			return
		}
		if err := dying.stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	r.d.between = reached
	err := r.d.Migrate(t.Context(), r.m, func(p relay.Progress) {
		if p.Step == stepCopy && p.Bytes > 0 {
			reached("copying")
		}
	})
	if err == nil || relay.IsIndeterminate(err) != c.unsettled || !strings.Contains(err.Error(), c.says) {
		t.Errorf("error %v", err)
	}
	if err := dying.start(); err != nil {
		t.Fatal(err)
	}
	// Nothing may have brought the source up again while the destination may run.
	if left := strings.Join(r.left(r.a), "\n"); c.unsettled &&
		(!strings.Contains(left, ".le") || strings.Contains(left, "running")) {
		t.Errorf("the source has %q", left)
	}
	if !c.unsettled {
		r.running(r.a)
	}
	r.m.Lease, r.m.Undo = 2, true
	r.settled(r.migrate(), c.forward, want)
}
