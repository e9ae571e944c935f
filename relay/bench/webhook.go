package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	hookMessages    = 20_000
	hookRounds      = 11
	hookConcurrency = 64
	hookBacklog     = 2_000_000
	hookTopics      = "container.*"
	hookSecret      = "whsec_aHVicmVsYXktYmVuY2gtb24tbG9vcGJhY2sx"

	slowAnswer   = 20 * time.Millisecond
	slowMessages = 10_000
	slowRounds   = 2
)

// drained is the rate and cost of delivering a backlog.
type drained struct {
	rate float64 // requests/s, as the receiver saw them
	cost float64 // CPU microseconds of the sender for each

	signed int
}

// measureWebhook lets the daemon and a bare loop post the same backlog in turns.
func measureWebhook(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	var rows []row
	err = r.withDaemon(ctx, sinksConfig(to.webhookConfig("hook", hookTopics)), func(d *daemon) error {
		if rows, err = r.hookRounds(ctx, d, to); err != nil {
			return err
		}
		if _, err := to.sendAndRead("answer", slowAnswer); err != nil {
			return err
		}
		var slow float64
		for range slowRounds {
			own, err := r.drainBacklog(ctx, d, to, slowMessages)
			if err != nil {
				return err
			}
			slow = max(slow, own.rate)
		}
		rows = append(rows, newRow("webhook that takes 20 ms, 64 at once", slow, "requests/s", "64 / 20 ms",
			hookConcurrency/slowAnswer.Seconds()).ratioAtLeast(0.92))
		return nil
	})
	return rows, err
}

// hookRounds compares the daemon and the loop round by round, because the cost of a request varies by half within a
// minute on a shared machine. The median of the ratios counts, because the best values would come from different
// rounds. Both run once before the first round that counts, and alternate in starting.
func (r *rig) hookRounds(ctx context.Context, d *daemon, to target) ([]row, error) {
	const beside = "a bare net/http loop"
	loop, err := startRole(ctx, roleLoop, "-redis", r.redis.address, "-url", to.hookURL("loop"), "-n",
		strconv.Itoa(hookConcurrency))
	if err != nil {
		return nil, err
	}
	defer loop.stop()
	if _, err := loop.readLine(); err != nil {
		return nil, err
	}
	var rates, costs []row
	for i := range hookRounds + 1 {
		var own, floor drained
		ours := func() (err error) { own, err = r.drainBacklog(ctx, d, to, hookMessages); return err }
		theirs := func() (err error) { floor, err = r.loopDrain(loop, to, hookMessages); return err }
		turns := []func() error{ours, theirs}
		if i%2 == 1 {
			slices.Reverse(turns)
		}
		for _, turn := range turns {
			if err := turn(); err != nil {
				return nil, err
			}
		}
		if i == 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "webhook: %.1f us CPU/request, the bare loop %.1f\n", own.cost, floor.cost)
		rates = append(rates,
			newRow("webhook, 20,000 to one that answers at once", own.rate, "requests/s", beside,
				floor.rate).atLeast(15_000))
		costs = append(costs,
			newRow("the same, CPU of a request", own.cost, "us CPU/request", beside, floor.cost).ratioAtMost(1.4))
	}
	slices.SortFunc(rates, func(a, b row) int { return cmp.Compare(a.Measured, b.Measured) })
	slices.SortFunc(costs, func(a, b row) int { return cmp.Compare(a.Ratio, b.Ratio) })
	return []row{rates[hookRounds/2], costs[hookRounds/2]}, nil
}

// drainBacklog lets a backlog of n grow while the sink is paused, and then go.
func (r *rig) drainBacklog(ctx context.Context, d *daemon, to target, n int) (drained, error) {
	if err := d.postAdmin(ctx, "sinks/hook/pause"); err != nil {
		return drained{}, err
	}
	if err := d.publish(n); err != nil {
		return drained{}, err
	}
	if err := r.waitQueued(ctx, n); err != nil {
		return drained{}, err
	}
	return r.deliverBacklog(ctx, d, to, n, func() error { return d.postAdmin(ctx, "sinks/hook/resume") })
}

// deliverBacklog begins something that delivers n notifications, and waits for the last and for every ack to be stored.
func (r *rig) deliverBacklog(ctx context.Context, d *daemon, to target, n int, begin func() error) (drained, error) {
	got, err := to.measurePost(d.cmd.Process.Pid, n, begin, func() error { return r.waitQueued(ctx, 0) })
	if err == nil && got.signed != n {
		err = fmt.Errorf("%d of %d requests were signed", got.signed, n)
	}
	return got, err
}

// waitQueued waits until the queue of the sink hook holds n notifications.
func (r *rig) waitQueued(ctx context.Context, n int) error { return r.waitQueuedFor(ctx, "hook", n) }

// waitQueuedFor does so for any sink.
func (r *rig) waitQueuedFor(ctx context.Context, sink string, n int) error {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	defer func() { _ = client.Close() }()
	return retryUntil(ctx, 10*time.Second, func() error {
		got, err := client.XLen(ctx, "hubrelay:queue:"+sink+":{0}").Result()
		if err == nil && got != int64(n) {
			err = fmt.Errorf("%d of %d notifications wait in the queue", got, n)
		}
		return err
	})
}

// loopDrain is the same for the bare loop.
func (r *rig) loopDrain(loop *part, to target, n int) (drained, error) {
	c, err := r.redis.dial()
	if err != nil {
		return drained{}, err
	}
	defer c.close()
	if err := c.runCommand("DEL", loopStream); err != nil {
		return drained{}, err
	}
	fields := []string{
		"id", "5f0c8a7e9d3b2a1c4e6f8a92", "topic", "container.instance.state.changed", "hub", benchHub,
		"account", "5f0c8a7e9d3b2a1c4e6f8a91", "data", event,
	}
	if err := r.fillStream(loopStream, n, fields); err != nil {
		return drained{}, err
	}
	got, err := to.measurePost(loop.cmd.Process.Pid, n, func() error { return loop.sendLine("go") }, func() error {
		_, err := loop.readLine()
		return err
	})
	if err != nil {
		err = fmt.Errorf("the bare loop: %w", err)
	}
	return got, err
}

// publish stores n notifications.
func (d *daemon) publish(n int) error {
	c, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer c.close()
	lines := publishRequest("application/x-ndjson", repeatBytes([]byte(event+"\n"), batchSize))
	for range n / batchSize {
		if err := c.postRequest(lines); err != nil {
			return err
		}
	}
	return nil
}

// postAdmin posts to the daemon's admin API.
func (d *daemon) postAdmin(ctx context.Context, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/"+what, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := d.operator.Do(req)
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
	address, err := p.readLine()
	if err != nil {
		p.stop()
	}
	return target{p, address}, err
}

func (to target) hookURL(path string) string { return "http://" + to.address + "/" + path }

// measurePost starts a delivery with begin, waits until n requests have arrived, then calls ended.
func (to target) measurePost(pid, n int, begin, ended func() error) (drained, error) {
	if _, err := to.sendAndRead("reset"); err != nil {
		return drained{}, err
	}
	before, err := cpuTime(pid)
	if err != nil {
		return drained{}, err
	}
	if err := begin(); err != nil {
		return drained{}, err
	}
	answer, err := to.sendAndRead("await", n)
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
	return drained{
		rate: float64(n) / took.Seconds(), cost: float64((after - before).Microseconds()) / float64(n), signed: signed,
	}, nil
}

// webhookConfig is a sink that signs and posts, as a line of the configuration.
func (to target) webhookConfig(name, topics string) string {
	return fmt.Sprintf("  %s: {type: webhook, url: %q, secrets: [%q], allow_cidrs: [127.0.0.0/8], concurrency: %d, "+
		"backlog: %d, topics: [%q]}\n",
		name, to.hookURL(name), hookSecret, hookConcurrency, hookBacklog, topics)
}

func sinksConfig(lines ...string) string { return "sinks:\n" + strings.Join(lines, "") }
