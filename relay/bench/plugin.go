package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
)

const (
	pluginEvents     = 200_000
	pluginRounds     = 4
	pluginMessages   = 40_000
	pluginSteady     = 2_000 // events, one per millisecond
	pluginIdle       = 20
	pluginRestarts   = 5
	pluginConcurrent = 1024
)

// measurePlugin delivers events to a plugin in another process. The host runs in a separate process, so its CPU time
// is counted separately. The baseline is the same bytes over a bare Unix socket.
func measurePlugin(ctx context.Context, r *rig) ([]row, error) {
	host, err := startRole(ctx, roleHost)
	if err != nil {
		return nil, err
	}
	defer host.stop()
	var rate, echo float64
	cost, echoCost := math.Inf(1), math.Inf(1)
	for range pluginRounds {
		var events, each float64
		if err := host.requestNumbers("echo", &events, &each); err != nil {
			return nil, err
		}
		echo, echoCost = max(echo, events), min(echoCost, each)
		if err := host.requestNumbers("events", &events, &each); err != nil {
			return nil, err
		}
		rate, cost = max(rate, events), min(cost, each)
		fmt.Fprintf(os.Stderr, "plugin: %.0f events/s, %.1f us of the host's CPU each\n", events, each)
	}
	late, echoLate, restart, idle := math.Inf(1), math.Inf(1), math.Inf(1), 0.0
	for range pluginRounds {
		var p99, baseline float64
		if err := host.requestNumbers("late", &p99, &baseline); err != nil {
			return nil, err
		}
		late, echoLate = min(late, p99), min(echoLate, baseline)
	}
	var bare float64
	if err := host.requestNumbers("restart", &restart, &bare); err != nil {
		return nil, err
	}
	var weight float64
	if err := host.requestNumbers("idle", &idle, &weight); err != nil {
		return nil, err
	}
	through, err := r.measureThroughDaemon(ctx)
	if err != nil {
		return nil, err
	}
	const socket = "the same bytes over a bare unix socket"
	return []row{
		newRow("plugin, from Deliver to the ack", rate, "events/s", socket, echo).atLeast(100_000),
		newRow("the same, CPU of the host", cost, "us CPU/event", socket, echoCost).atMost(10),
		newRow("plugin with Redis and the daemon", through, "deliveries/s", "without them", rate).atLeast(15_000),
		newRow("p99 at 1,000 events/s", late, "ms from Deliver to the ack", socket, echoLate).atMost(2),
		newRow("plugin killed with -9 answers again", restart, "ms",
			"starting a process that responds", bare).atMost(1000),
		newRow("20 idle plugins, each", idle, "MiB of the host", "the host without them", weight).atMost(1),
	}, nil
}

// requestNumbers sends a command and parses the numbers in the response.
func (p *part) requestNumbers(what string, into ...*float64) error {
	response, err := p.request(what)
	if err != nil {
		return err
	}
	list := make([]any, len(into))
	for i := range into {
		list[i] = into[i]
	}
	if _, err := fmt.Sscan(response, list...); err != nil {
		return fmt.Errorf("parse response %q to %s: %w", response, what, err)
	}
	return nil
}

// measureThroughDaemon returns the notifications per second that a daemon delivers from a backlog to a plugin.
func (r *rig) measureThroughDaemon(ctx context.Context) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	sink := fmt.Sprintf("  hook: {type: plugin, command: [%q], env: [%q], "+
		"concurrency: 256, backlog: %d, topics: [%q]}\n",
		self, roleVariable+"="+rolePlugin, hookBacklog, hookTopics)
	best := 0.0
	err = r.runWithDaemon(ctx, "sinks:\n"+sink, func(d *daemon) error {
		for range 3 {
			if err := d.postAdmin(ctx, "sinks/hook/pause"); err != nil {
				return err
			}
			if err := d.publish(pluginMessages); err != nil {
				return err
			}
			if err := r.waitForQueue(ctx, pluginMessages); err != nil {
				return err
			}
			took, err := timeCall(func() error {
				if err := d.postAdmin(ctx, "sinks/hook/resume"); err != nil {
					return err
				}
				return r.waitForQueue(ctx, 0)
			})
			if err != nil {
				return fmt.Errorf("%w\n%s", err, strings.TrimSpace(d.log.String()))
			}
			best = max(best, pluginMessages/took.Seconds())
		}
		return nil
	})
	return best, err
}
