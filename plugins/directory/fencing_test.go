package directory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// Every operation of a superseded process fails and changes nothing.
func TestInstanceDir_SupersededLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(late instanceDir, v *migration) error{
		"claim":             func(late instanceDir, _ *migration) error { return late.claim() },
		"create marker":     func(late instanceDir, _ *migration) error { return late.createMarker(fileStop) },
		"remove marker":     func(late instanceDir, _ *migration) error { return late.removeMarker(fileSwitched) },
		"remove tree":       func(late instanceDir, _ *migration) error { return late.removeTree(late.instancePath()) },
		"discard leftovers": func(late instanceDir, _ *migration) error { return late.discardMatching(isLeftover) },
		"write note":        func(late instanceDir, _ *migration) error { return jobNote{Job: "late"}.write(late) },
		"stop agent": func(late instanceDir, v *migration) error {
			return v.driver.agents.stopAgent(context.Background(), late)
		},
		"rename into work directory": func(late instanceDir, _ *migration) error {
			return late.rename(late.instancePath(), late.workFile(dirInstance))
		},
		"rename from work directory": func(late instanceDir, _ *migration) error {
			return late.rename(late.workFile(dirReady), late.instancePath())
		},
		"start copy":    func(_ instanceDir, v *migration) error { _, err := newTree(v); return err },
		"remove source": func(_ instanceDir, v *migration) error { return v.removeSource() },
		"start agent": func(late instanceDir, v *migration) error {
			_, err := v.driver.agents.startAgent(late)
			return errors.Join(err, v.driver.agents.ensureStarted(context.Background(), late, true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "/bin/sh", "-c", ticker)
			v, err := r.d.newMove(r.m, r.report)
			must(t, err, v.source.claim())
			v.destination = v.source
			now := v.source
			now.lease = 2
			must(t, now.claim(), now.createMarker(fileSwitched), os.Mkdir(now.workFile(dirReady), 0o700))
			before := listing(t, r.a)
			if err := try(v.source, v); !errors.Is(err, relay.ErrSuperseded) {
				t.Errorf("got error %v, want ErrSuperseded", err)
			}
			r.until("all agents have ended", func() bool { r.d.agents.isAlive(0); return len(r.d.agents.pids) == 0 })
			if after := listing(t, r.a); after != before {
				t.Errorf("got\n%s\nwant\n%s", after, before)
			}
		})
	}
}

// The rename fails even if the process was suspended just before it, after its last check.
func TestInstanceDir_RenameFailsAfterClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	late := instanceDir{path: r.a, instance: "i", lease: 7}
	must(t, late.claim())
	from, to := late.instancePath(), late.workFile(dirInstance)
	now := late
	now.lease = 8
	must(t, now.claim())
	if err := os.Rename(from, to); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// After concurrent claims, the fence directory contains only the highest lease.
func TestInstanceDir_HighestConcurrentClaimWins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var wg sync.WaitGroup
	for lease := range int64(40) {
		wg.Go(func() {
			p := instanceDir{path: r.a, instance: "i", lease: lease + 1}
			err := p.claim()
			if err == nil && p.lease < 40 || errors.Is(err, relay.ErrSuperseded) {
				return
			}
			if err != nil {
				t.Error(lease, err)
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(filepath.Join(r.a, dirFence, "i"))
	if err != nil || len(entries) != 1 || entries[0].Name() != strconv.Itoa(40) {
		t.Error(entries, err)
	}
	if all, err := os.ReadDir(filepath.Join(r.a, dirFence)); err != nil || len(all) != 1 {
		t.Error("unexpected entries: ", all, err)
	}
}
