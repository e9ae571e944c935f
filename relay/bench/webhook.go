package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	hookMessages    = 20_000
	hookRounds      = 4
	hookConcurrency = 64
	hookBacklog     = 2_000_000
	hookTopics      = "container.*"
	hookSecret      = "whsec_aHVicmVsYXktYmVuY2gtb24tbG9vcGJhY2sx"

	slowAnswer   = 20 * time.Millisecond
	slowMessages = 10_000
	slowRounds   = 2
)

// drained is what it took to post a backlog.
type drained struct {
	rate float64 // requests/s, as the receiver saw them
	cost float64 // CPU microseconds of the sender for each

	signed int
}

// measureWebhook lets the daemon and a bare loop post the same backlog in turns. Of each the best round counts, since a
// neighbour on the machine only ever takes away.
func measureWebhook(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	best, floor := drained{cost: math.Inf(1)}, drained{cost: math.Inf(1)}
	var slow float64
	err = r.withDaemon(ctx, webhooks(to.webhook("hook", hookTopics)), func(d *daemon) error {
		for range hookRounds {
			loop, err := r.loopDrain(ctx, to, hookMessages)
			if err != nil {
				return fmt.Errorf("the bare loop: %w", err)
			}
			own, err := r.drain(ctx, d, to, hookMessages)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "webhook: %.1f us CPU/request, the bare loop %.1f\n", own.cost, loop.cost)
			best, floor = best.better(own), floor.better(loop)
		}
		if _, err := to.ask("answer", slowAnswer); err != nil {
			return err
		}
		for range slowRounds {
			own, err := r.drain(ctx, d, to, slowMessages)
			if err != nil {
				return err
			}
			slow = max(slow, own.rate)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	const loop = "a bare net/http loop"
	return []row{
		newRow("webhook, 20,000 to one that answers at once", best.rate, "requests/s", loop, floor.rate).atLeast(15_000),
		newRow("the same, CPU of a request", best.cost, "us CPU/request", loop, floor.cost).ratioAtMost(1.4),
		newRow("webhook that takes 20 ms, 64 at once", slow, "requests/s", "64 / 20 ms", hookConcurrency/slowAnswer.Seconds()).ratioAtLeast(0.92),
	}, nil
}

func (d drained) better(other drained) drained {
	return drained{rate: max(d.rate, other.rate), cost: min(d.cost, other.cost)}
}

// drain lets a backlog of n grow while the sink is paused, and then go.
func (r *rig) drain(ctx context.Context, d *daemon, to target, n int) (drained, error) {
	if err := d.operate(ctx, "sinks/hook/pause"); err != nil {
		return drained{}, err
	}
	if err := d.publish(n); err != nil {
		return drained{}, err
	}
	if err := r.queued(ctx, n); err != nil {
		return drained{}, err
	}
	return r.deliver(ctx, d, to, n, func() error { return d.operate(ctx, "sinks/hook/resume") })
}

// deliver begins something that delivers n notifications, and waits for the last and for every ack to be stored.
func (r *rig) deliver(ctx context.Context, d *daemon, to target, n int, begin func() error) (drained, error) {
	got, err := to.timed(d.cmd.Process.Pid, n, begin, func() error { return r.queued(ctx, 0) })
	if err == nil && got.signed != n {
		err = fmt.Errorf("%d of %d requests were signed", got.signed, n)
	}
	return got, err
}

// queued waits until the sink's queue holds n notifications.
func (r *rig) queued(ctx context.Context, n int) error {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	defer func() { _ = client.Close() }()
	return until(ctx, 10*time.Second, func() error {
		got, err := client.XLen(ctx, "hubrelay:queue:hook:{0}").Result()
		if err == nil && got != int64(n) {
			err = fmt.Errorf("%d of %d notifications wait in the queue", got, n)
		}
		return err
	})
}

// loopDrain is the same for the bare loop.
func (r *rig) loopDrain(ctx context.Context, to target, n int) (drained, error) {
	c, err := r.redis.dial()
	if err != nil {
		return drained{}, err
	}
	defer c.close()
	if err := c.do("DEL", loopStream); err != nil {
		return drained{}, err
	}
	fields := []string{"id", "5f0c8a7e9d3b2a1c4e6f8a92", "topic", "container.instance.state.changed", "hub", benchHub, "account", "5f0c8a7e9d3b2a1c4e6f8a91", "data", event}
	if err := r.fill(loopStream, n, fields); err != nil {
		return drained{}, err
	}
	loop, err := startRole(ctx, roleLoop, "-redis", r.redis.address, "-url", to.url("loop"), "-n", strconv.Itoa(hookConcurrency))
	if err != nil {
		return drained{}, err
	}
	defer loop.stop()
	if _, err := loop.line(); err != nil {
		return drained{}, err
	}
	return to.timed(loop.cmd.Process.Pid, n, func() error { return loop.tell("go") }, func() error {
		_, err := loop.line()
		return err
	})
}

// publish stores n notifications.
func (d *daemon) publish(n int) error {
	c, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer c.close()
	lines := request("application/x-ndjson", repeat([]byte(event+"\n"), batchSize))
	for range n / batchSize {
		if err := c.post(lines); err != nil {
			return err
		}
	}
	return nil
}

// operate posts to the daemon's admin API.
func (d *daemon) operate(ctx context.Context, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+d.admin+"/api/"+what, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(what + " was answered " + resp.Status)
	}
	return nil
}

// target is the process that plays the receiver.
type target struct {
	*part
	address string
}

func startReceiver(ctx context.Context) (target, error) {
	p, err := startRole(ctx, roleReceiver)
	if err != nil {
		return target{}, err
	}
	address, err := p.line()
	if err != nil {
		p.stop()
	}
	return target{p, address}, err
}

func (to target) url(path string) string { return "http://" + to.address + "/" + path }

// timed begins something, waits until n requests have come, and until it has ended.
func (to target) timed(pid, n int, begin, ended func() error) (drained, error) {
	if _, err := to.ask("forget"); err != nil {
		return drained{}, err
	}
	before, err := cpuTime(pid)
	if err != nil {
		return drained{}, err
	}
	if err := begin(); err != nil {
		return drained{}, err
	}
	answer, err := to.ask("await", n)
	if err != nil {
		return drained{}, err
	}
	if err := ended(); err != nil {
		return drained{}, err
	}
	after, err := cpuTime(pid)
	if err != nil {
		return drained{}, err
	}
	var signed int
	var took time.Duration
	if _, err := fmt.Sscan(answer, &signed, (*int64)(&took)); err != nil {
		return drained{}, err
	}
	return drained{rate: float64(n) / took.Seconds(), cost: float64((after - before).Microseconds()) / float64(n), signed: signed}, nil
}

// webhook is a sink that signs and posts, as a line of the configuration.
func (to target) webhook(name, topics string) string {
	return fmt.Sprintf("  %s: {type: webhook, url: %q, secrets: [%q], allow_cidrs: [127.0.0.0/8], concurrency: %d, backlog: %d, topics: [%q]}\n",
		name, to.url(name), hookSecret, hookConcurrency, hookBacklog, topics)
}

func webhooks(lines ...string) string { return "sinks:\n" + strings.Join(lines, "") }
