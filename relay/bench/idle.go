package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"
)

const (
	starts   = 5
	idleWait = 3 * time.Second
)

// measureIdle starts the daemon a few times on a Redis that runs, and weighs it when it has settled.
func measureIdle(ctx context.Context, r *rig) ([]row, error) {
	if err := r.redis.flush(); err != nil {
		return nil, err
	}
	var readies, bares []float64
	var weight float64
	for i := range starts {
		began := time.Now()
		if out, err := exec.CommandContext(ctx, r.daemon, "version").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("hubrelay version: %w: %s", err, out)
		}
		bares = append(bares, toMilliseconds(time.Since(began)))
		ready, mib, err := r.startOnce(ctx, i == starts-1)
		if err != nil {
			return nil, err
		}
		readies = append(readies, toMilliseconds(ready))
		weight = mib
	}
	bare, err := bareWeight(ctx)
	if err != nil {
		return nil, fmt.Errorf("weigh a bare server: %w", err)
	}
	return []row{
		newRow("ready after the start, Redis running", medianOf(readies), "ms", "hubrelay version, start to end",
			medianOf(bares)).atMost(500),
		newRow("idle daemon, resident", weight, "MiB", "a bare Go server", bare).atMost(30),
	}, nil
}

// startOnce returns how long the daemon took to be ready and, where asked to weigh it, what it holds when idle.
func (r *rig) startOnce(ctx context.Context, weigh bool) (time.Duration, float64, error) {
	d, err := r.startDaemon(ctx, "")
	if err != nil {
		return 0, 0, err
	}
	defer d.stop()
	ready, err := d.waitReady(ctx)
	if err != nil || !weigh {
		return ready, 0, err
	}
	if err := sleepFor(ctx, idleWait); err != nil {
		return 0, 0, err
	}
	mib, err := residentMiB(d.cmd.Process.Pid)
	return ready, mib, err
}

func bareWeight(ctx context.Context) (float64, error) {
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

func medianOf(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func sleepFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
