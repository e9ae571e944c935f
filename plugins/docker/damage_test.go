//go:build linux

package docker

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// Damage to the copy before the verification makes the migration fail.
func TestMigrate_DetectsDamagedCopy(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"contents": func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, "large"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			_, err = f.WriteAt([]byte("x"), 100_000)
			return err
		},
		"mode":         func(dir string) error { return os.Chmod(dir, 0o777) },
		"owner":        func(dir string) error { return os.Lchown(filepath.Join(dir, "deep/link"), 7, 7) },
		"missing file": func(dir string) error { return os.Remove(filepath.Join(dir, "deep/empty")) },
		"extra file":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			want := r.listing(r.a)
			r.d.stepHook = func(p string) {
				if p != stepVerify {
					return
				}
				if err := damage(r.b.volume(r.volume)); err != nil {
					t.Error(err)
				}
			}
			r.failed(r.migrate(), want, "volume "+r.volume+" on server b differs from the data read on server a")
		})
	}
}

func TestMigrate_FailsIfDestinationIsFull(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	runtime.LockOSThread() // see daemon.start
	small := filepath.Join(filepath.Dir(hostA.dir), "f")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatal(err)
	}
	full, err := startDaemon(filepath.Dir(hostA.dir), "f")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := full.stop(syscall.SIGTERM); err != nil { // also unmounts the directory
			t.Error(err)
		}
	})
	r := newRigOn(t, hostA, full, nil)
	if err := os.Truncate(filepath.Join(r.a.volume(r.volume), "large"), 100<<20); err != nil {
		t.Fatal(err)
	}
	r.failed(r.migrate(), r.listing(r.a), "server b has not enough disk space", "no space left on device")
}

// A container that takes the instance's name on the destination during the migration is not touched.
func TestMigrate_KeepsContainerThatTakesTheName(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	var once atomic.Bool
	r.d.stepHook = func(p string) {
		if p == stepSwitch && once.CompareAndSwap(false, true) {
			r.other(r.b, func(o *client.ContainerCreateOptions) { o.Name = r.instance })
		}
	}
	err := r.migrate()
	if err == nil || !strings.Contains(err.Error(), "server b now has another container") {
		t.Errorf("got error %v", err)
	}
	if left := r.left(r.b); len(left) != 1 || !strings.HasSuffix(left[0], "running") {
		t.Errorf("the destination has %q", left)
	}
	if _, err := r.b.api.ContainerRemove(t.Context(), r.instance,
		client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	r.alone(r.a, want)
}

// Several drivers are killed at random times, and the last one completes or undoes the migration.
func TestMigrate_ContinuesAfterKillsAtRandomTimes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			random, want := rand.New(rand.NewPCG(seed, 1)), r.listing(r.a)
			for range 4 {
				r.m.Undo = r.m.Undo || random.IntN(5) == 0
				driver := r.process("", false)
				if err := driver.Start(); err != nil {
					t.Fatal(err)
				}
				end := time.AfterFunc(time.Duration(random.IntN(2500))*time.Millisecond,
					func() { _ = driver.Process.Kill() })
				err := driver.Wait()
				end.Stop()
				if !isKilled(err) {
					break // the migration has ended, and another call would be a new job
				}
				r.m.Lease++
			}
			err := r.migrate()
			if errors.Is(err, relay.ErrSuperseded) || relay.IsIndeterminate(err) || err != nil && !r.m.Undo {
				t.Errorf("got error %v", err)
			}
			r.settled(err, err == nil, want)
		})
	}
}
