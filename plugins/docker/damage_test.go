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

// The copy is damaged before its verification.
func TestMigrate_DetectsDamagedCopy(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(folder string) error{
		"contents": func(folder string) error {
			f, err := os.OpenFile(filepath.Join(folder, "large"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			_, err = f.WriteAt([]byte("x"), 100_000)
			return err
		},
		"mode":    func(folder string) error { return os.Chmod(folder, 0o777) },
		"owner":   func(folder string) error { return os.Lchown(filepath.Join(folder, "deep/link"), 7, 7) },
		"missing": func(folder string) error { return os.Remove(filepath.Join(folder, "deep/empty")) },
		"more":    func(folder string) error { return os.WriteFile(filepath.Join(folder, "more"), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			want := r.listing(r.a)
			r.d.between = func(p string) {
				if p != stepVerify {
					return
				}
				if err := damage(r.b.volume(r.volume)); err != nil {
					t.Error(err)
				}
			}
			r.failed(r.migrate(), want, "volume "+r.volume+" is not on server b as it was read on server a")
		})
	}
}

func TestMigrate_FailsIfDestinationIsFull(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	runtime.LockOSThread() // see daemon.start
	small := filepath.Join(filepath.Dir(hostA.folder), "f")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatal(err)
	}
	full, err := startDaemon(filepath.Dir(hostA.folder), "f")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := full.stop(syscall.SIGTERM); err != nil { // which unmounts the folder too
			t.Error(err)
		}
	})
	r := newRigOn(t, hostA, full, nil)
	if err := os.Truncate(filepath.Join(r.a.volume(r.volume), "large"), 100<<20); err != nil {
		t.Fatal(err)
	}
	r.failed(r.migrate(), r.listing(r.a), "server b has no room left", "no space left on device")
}

// A container that takes the instance's name at the destination during the migration is not touched.
func TestMigrate_KeepsContainerThatTakesTheName(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	var once atomic.Bool
	r.d.between = func(p string) {
		if p == stepSwitch && once.CompareAndSwap(false, true) {
			r.other(r.b, func(o *client.ContainerCreateOptions) { o.Name = r.instance })
		}
	}
	err := r.migrate()
	if err == nil || !strings.Contains(err.Error(), "server b has another container") {
		t.Errorf("error %v", err)
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

// Drivers are killed at any time, one after the other, until one is left alone.
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
					break // it has already ended, and another call would be a new job
				}
				r.m.Lease++
			}
			err := r.migrate()
			if errors.Is(err, relay.ErrSuperseded) || relay.IsIndeterminate(err) || err != nil && !r.m.Undo {
				t.Errorf("error %v", err)
			}
			r.settled(err, err == nil, want)
		})
	}
}
