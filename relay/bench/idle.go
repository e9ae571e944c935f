package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

const (
	idleStarts = 5
	idleWait   = 3 * time.Second
)

// measureIdle starts the daemon several times with a running Redis, and measures its memory when it is idle.
func measureIdle(ctx context.Context, r *rig) ([]row, error) {
	if err := r.redis.flush(); err != nil {
		return nil, err
	}
	if err := dropCache(r.daemon); err != nil {
		return nil, err
	}
	var readies, bares, weights []float64
	for range idleStarts {
		startedAt := time.Now()
		if out, err := exec.CommandContext(ctx, r.daemon, "version").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("hubrelay version: %w: %s", err, out)
		}
		bares = append(bares, milliseconds(time.Since(startedAt)))
		ready, mib, err := r.measureStart(ctx)
		if err != nil {
			return nil, err
		}
		readies = append(readies, milliseconds(ready))
		weights = append(weights, mib)
	}
	bare, err := weighBareServer(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure a bare server: %w", err)
	}
	return []row{
		newRow("ready after the start, Redis running", median(readies), "ms",
			"hubrelay version, start to end", median(bares)).atMost(500),
		newRow("idle daemon, resident", median(weights), "MiB", "a bare Go server", bare).atMost(30),
	}, nil
}

// dropCache makes the kernel read a program from the disk again. Otherwise the resident memory of its processes depends
// on how the file was written: after a build it is 2 MiB more than after a copy.
func dropCache(program string) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// measureStart returns the time until the daemon was ready, and its idle memory.
func (r *rig) measureStart(ctx context.Context) (time.Duration, float64, error) {
	d, err := r.startDaemon(ctx, "")
	if err != nil {
		return 0, 0, err
	}
	defer d.stop()
	ready, err := d.waitReady(ctx)
	if err != nil {
		return ready, 0, err
	}
	if err := sleep(ctx, idleWait); err != nil {
		return 0, 0, err
	}
	mib, err := residentMiB(d.cmd.Process.Pid)
	return ready, mib, err
}

func weighBareServer(ctx context.Context) (float64, error) {
	p, err := startRole(ctx, roleFloor)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if _, err := p.readLine(); err != nil {
		return 0, err
	}
	return residentMiB(p.cmd.Process.Pid)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
