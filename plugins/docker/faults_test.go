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

// points are the step hooks of a successful migration.
var points = []struct {
	name    string
	forward bool // from this point on, an undo completes the migration
}{
	{"claim", false},
	{"check", false},
	{"image", false},
	{"prepare", false},
	{"create", false},
	{"volumes created", false},
	{"stop", false},
	{"rename source", false},
	{"source renamed", false},
	{"restart policy cleared", false},
	{"stopped", false},
	{"copy", false},
	{"copy volume", false},
	{"verify", false},
	{"start", false},
	{"left", false},
	{"started", true}, // the instance has run on the destination
	{"switch", true},
	{"clean", true},
	{"removed", true},
}

// midStreamPoints are points in the middle of a stream.
var midStreamPoints = []string{"copy in progress", "verify in progress"}

func TestMigrate_ContinuesAfterKill(t *testing.T) {
	t.Parallel()
	names := midStreamPoints
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

// The next process also continues an undo that was killed.
func TestMigrate_UndoContinuesAfterKill(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"back", "discarded", "restart policy restored", "restarted"} {
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

// A later call does not copy the volumes again if the new container is the same.
func TestMigrate_ReusesCompletedCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	stop := errors.New("stop here")
	ctx, cancel := context.WithCancelCause(t.Context())
	r.d.stepHook = func(p string) {
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
	r.d.stepHook, r.reports = func(string) {}, nil
	r.m.Lease++
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
	for _, p := range r.reports {
		if p.Step == stepCopy && p.Bytes > 0 {
			t.Fatal("the volume was copied again")
		}
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
	r := newRig(t, nil)
	want := r.listing(r.a)
	config := testConfig()
	late, reached, wake := New(&config), make(chan struct{}), make(chan struct{})
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
	r.settled(r.migrate(), forward, want)
	before := [][]string{r.left(r.a), r.left(r.b)}
	close(wake)
	if err := <-result; !errors.Is(err, relay.ErrSuperseded) {
		t.Errorf("the superseded process returned %v, want ErrSuperseded", err)
	}
	after := [][]string{r.left(r.a), r.left(r.b)}
	if strings.Join(after[0], "\n") != strings.Join(before[0], "\n") ||
		strings.Join(after[1], "\n") != strings.Join(before[1], "\n") {
		t.Errorf("the superseded process changed\n%q\nto\n%q", before, after)
	}
	if forward {
		r.alone(r.b, want)
	} else {
		r.alone(r.a, want)
	}
}

// A process that is suspended in the middle of a copy delays its successor until it is killed.
func TestMigrate_SuspendedProcessDelaysOnlyItsSuccessor(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	frozen := r.process("copy in progress", true)
	if err := frozen.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the process to stop", func() bool {
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(frozen.Process.Pid), "stat"))
		return bytes.Contains(status, []byte(") T "))
	})
	r.m.Lease = 2
	result := make(chan error, 1)
	claimed := make(chan struct{})
	r.d.stepHook = func(p string) {
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
			Test: []string{"CMD", "/app", "check"}, Interval: 200 * time.Millisecond, Retries: 2,
		}
	}
	t.Run("unhealthy on the destination", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, check)
		want := r.listing(r.a)
		r.m.CopyVolumes = false // the volume on the destination is empty
		r.failed(r.migrate(), want, "unhealthy on server b", "no marker")
	})
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(o *client.ContainerCreateOptions) {
			check(o)
			o.Config.Healthcheck.Retries = 1000
		})
		r.d.config.HealthTimeout = Duration(30 * time.Second)
		want := r.listing(r.a)
		r.m.CopyVolumes = false
		r.failed(r.migrate(), want, "not healthy on server b within 30s (health_timeout)", "no marker")
	})
	t.Run("healthy", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, check)
		want := r.listing(r.a)
		if err := r.migrate(); err != nil {
			t.Fatal(err)
		}
		r.alone(r.b, want)
	})
	t.Run("command ends repeatedly", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(o *client.ContainerCreateOptions) { o.Config.Cmd = []string{"/app", "fail"} })
		want := r.listing(r.a)
		r.d.config.Settle = Duration(time.Minute) // the command ends again before that
		r.m.CopyVolumes = false
		r.failed(r.migrate(), want, "did not stay up on server b", "status 7")
	})
	t.Run("command ends once", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, func(o *client.ContainerCreateOptions) { o.Config.Cmd = []string{"/app", "fail-once"} })
		want := r.listing(r.a)
		r.d.config.Settle = Duration(30 * time.Second)
		r.m.CopyVolumes = false
		err := r.migrate()
		r.failed(err, want, "did not stay up on server b: its command ended")
		if strings.Contains(err.Error(), "status 0") {
			t.Errorf("error %q contains a wrong exit status", err)
		}
	})
}

// A host fails during the migration.
func TestMigrate_HostFails(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	for name, c := range map[string]hostFailure{
		"source during the copy": {
			dir: "c", source: true, point: "copying", indeterminate: true,
			wantErr: "server a",
		},
		"destination during the copy": {dir: "d", point: "copying", wantErr: "server b"},
		"destination when it may run the instance": {
			dir: "e", point: "started", indeterminate: true,
			wantErr: "may be running on server b", forward: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime.LockOSThread() // see daemon.start
			failing, err := startDaemon(filepath.Dir(hostA.dir), c.dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := failing.stop(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
			})
			if err := failing.load(imageName, `CMD ["/app","serve"]`); err != nil {
				t.Fatal(err)
			}
			testHostFails(t, failing, c)
		})
	}
}

// hostFailure defines when which host fails, and the expected result of the migration.
type hostFailure struct {
	dir           string // directory of the failing host, short because the length of socket paths is limited
	source        bool   // the source fails, not the destination
	point         string
	indeterminate bool
	wantErr       string
	forward       bool // the undo completes the migration, because the instance runs on the restarted host
}

func testHostFails(t *testing.T, failing *daemon, c hostFailure) {
	a, b := hostA, failing
	if c.source {
		a, b = failing, hostB
	}
	r := newRigOn(t, a, b, nil)
	want := r.listing(r.a)
	var once atomic.Bool
	reached := func(point string) {
		if point != c.point || !once.CompareAndSwap(false, true) {
			return
		}
		if err := failing.stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	r.d.stepHook = reached
	err := r.d.Migrate(t.Context(), r.m, func(p relay.Progress) {
		if p.Step == stepCopy && p.Bytes > 0 {
			reached("copying")
		}
	})
	if err == nil || relay.IsIndeterminate(err) != c.indeterminate || !strings.Contains(err.Error(), c.wantErr) {
		t.Errorf("got error %v, want it to contain %q", err, c.wantErr)
	}
	if err := failing.start(); err != nil {
		t.Fatal(err)
	}
	// The source must stay stopped while the instance may be running on the destination.
	if left := strings.Join(r.left(r.a), "\n"); c.indeterminate &&
		(!strings.Contains(left, ".le") || strings.Contains(left, "running")) {
		t.Errorf("the source has %q", left)
	}
	if !c.indeterminate {
		r.running(r.a)
	}
	r.m.Lease, r.m.Undo = 2, true
	r.settled(r.migrate(), c.forward, want)
}
