package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

const (
	batchMax      = 100
	batchMessages = 20_000
	batchRounds   = 7
)

// measureBatch compares deliveries of a hundred notifications with deliveries of one notification, first from sealed
// deliveries that are scheduled for a retry (claim, attempt, outcome), then from the queue of a sink.
func measureBatch(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	var rows []row
	err = r.runWithDaemon(ctx, sinksConfig(to.webhookConfig("hook", hookTopics)), func(d *daemon) error {
		rows, err = r.runSealedRounds(ctx, d, to)
		return err
	})
	if err != nil {
		return nil, err
	}
	gathering := strings.Replace(to.webhookConfig("batches", hookTopics), "}\n",
		fmt.Sprintf(", batch: {max: %d, wait: 1s}}\n", batchMax), 1)
	err = r.runWithDaemon(ctx, sinksConfig(to.webhookConfig("hook", hookTopics), gathering), func(d *daemon) error {
		fresh, err := r.runFreshRounds(ctx, d, to)
		rows = append(rows, fresh)
		return err
	})
	return rows, err
}

// runFreshRounds lets two sinks deliver the same backlog, one after the other. One of them makes batches.
func (r *rig) runFreshRounds(ctx context.Context, d *daemon, to target) (row, error) {
	requests := map[string]int{"hook": batchMessages, "batches": batchMessages / batchMax}
	var rows []row
	for i := range batchRounds + 1 {
		for sink := range requests {
			if err := d.postAdmin(ctx, "sinks/"+sink+"/pause"); err != nil {
				return row{}, err
			}
		}
		if err := d.publish(batchMessages); err != nil {
			return row{}, err
		}
		for sink := range requests {
			if err := r.waitForSinkQueue(ctx, sink, batchMessages); err != nil {
				return row{}, err
			}
		}
		cost := map[string]float64{}
		for _, sink := range alternate(i, "hook", "batches") {
			got, err := to.timeRequests(d.cmd.Process.Pid, requests[sink],
				func() error { return d.postAdmin(ctx, "sinks/"+sink+"/resume") },
				func() error { return r.waitForSinkQueue(ctx, sink, 0) })
			if err != nil {
				return row{}, err
			}
			cost[sink] = got.cost * float64(requests[sink]) / batchMessages
		}
		if i > 0 {
			rows = append(rows, newRow("a notification in batches of 100, from its queue on", cost["batches"],
				"us CPU", "alone", cost["hook"]).ratioAtMost(0.75))
		}
	}
	return medianRatio(rows), nil
}

// runSealedRounds lets the daemon deliver scheduled retries of one notification, of batches, and of digests, and a
// bare loop sign and post the bodies of the first two.
func (r *rig) runSealedRounds(ctx context.Context, d *daemon, to target) ([]row, error) {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	defer func() { _ = client.Close() }()
	poster, err := startRole(ctx, rolePoster, "-address", to.address, "-n", strconv.Itoa(hookConcurrency))
	if err != nil {
		return nil, err
	}
	defer poster.stop()
	if _, err := poster.readLine(); err != nil {
		return nil, err
	}
	sealed := func(kind string, size int) func() (drainResult, error) {
		return func() (drainResult, error) { return r.drainSealed(ctx, d, to, client, newSealedBody(kind, size)) }
	}
	posted := func(size int) func() (drainResult, error) {
		return func() (drainResult, error) {
			return to.timeRequests(poster.cmd.Process.Pid, batchSealed,
				func() error { return poster.sendLine(batchSealed, size) },
				func() error { _, err := poster.readLine(); return err })
		}
	}
	measured := map[string]func() (drainResult, error){
		"one": sealed("", 1), "batch": sealed("batch", batchMax), "digest": sealed("digest", batchMax),
		"bare one": posted(1), "bare batch": posted(batchMax),
	}
	var table [4][]row
	for i := range batchRounds + 1 {
		cost := map[string]float64{}
		for _, what := range alternate(i, "one", "bare one", "batch", "bare batch", "digest") {
			got, err := measured[what]()
			if err == nil && got.signed != batchSealed {
				err = fmt.Errorf("%d of %d requests were signed", got.signed, batchSealed)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			cost[what] = got.cost
		}
		if i == 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "batch: one %.0f us CPU, a batch %.0f, a digest %.0f; the bare loop %.1f and %.1f\n",
			cost["one"], cost["batch"], cost["digest"], cost["bare one"], cost["bare batch"])
		const claimed = ", claimed, sent and settled"
		for j, one := range []row{
			newRow("a sealed batch of 100"+claimed, cost["batch"], "us CPU",
				"a delivery of one", cost["one"]).ratioAtMost(1.5),
			newRow("a sealed digest of 100"+claimed, cost["digest"], "us CPU",
				"a delivery of one", cost["one"]).ratioAtMost(1.5),
			newRow("the body of a batch, signed and posted by a bare loop", cost["bare batch"], "us CPU",
				"the body of one", cost["bare one"]).forComparison(),
			newRow("a sealed batch of 100"+claimed, cost["batch"], "us CPU",
				"a bare loop that has the body", cost["bare batch"]).forComparison(),
		} {
			table[j] = append(table[j], one)
		}
	}
	var rows []row
	for _, list := range table {
		rows = append(rows, medianRatio(list))
	}
	return rows, nil
}
