package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/backbone"
)

const (
	batchOf       = 100
	batchMessages = 20_000
	batchSealed   = 500
	batchRounds   = 5
)

// measureBatch compares deliveries of a hundred notifications with deliveries of one: what is sealed and parked already, that
// is claiming it, the attempt and settling it, and all of the way from a sink's queue.
func measureBatch(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	var alone, batched float64
	var sealed row
	hook := to.webhook("hook", hookTopics)
	if err := r.withDaemon(ctx, webhooks(hook), func(d *daemon) error {
		if sealed, err = r.sealedRounds(ctx, d, to); err != nil {
			return err
		}
		alone, err = r.cheapest(func() (drained, error) { return r.drain(ctx, d, to, batchMessages) })
		return err
	}); err != nil {
		return nil, err
	}
	hook = strings.Replace(hook, "}\n", fmt.Sprintf(", batch: {max: %d, wait: 1s}}\n", batchOf), 1)
	if err := r.withDaemon(ctx, webhooks(hook), func(d *daemon) error {
		batched, err = r.cheapest(func() (drained, error) { return r.drainBatches(ctx, d, to) })
		return err
	}); err != nil {
		return nil, err
	}
	return []row{
		sealed,
		newRow("a notification in batches of 100, from its queue on", batched/batchOf, "us CPU", "alone", alone).ratioAtMost(0.75),
	}, nil
}

func (r *rig) cheapest(round func() (drained, error)) (float64, error) {
	var costs []float64
	for range batchRounds {
		got, err := round()
		if err != nil {
			return 0, err
		}
		costs = append(costs, got.cost)
	}
	return slices.Min(costs), nil
}

// drainBatches is drain for a sink that gets batches, each of which is a request.
func (r *rig) drainBatches(ctx context.Context, d *daemon, to target) (drained, error) {
	if err := d.operate(ctx, "sinks/hook/pause"); err != nil {
		return drained{}, err
	}
	if err := d.publish(batchMessages); err != nil {
		return drained{}, err
	}
	if err := r.queued(ctx, batchMessages); err != nil {
		return drained{}, err
	}
	return r.deliver(ctx, d, to, batchMessages/batchOf, func() error { return d.operate(ctx, "sinks/hook/resume") })
}

// sealedRounds lets the daemon work off parked deliveries of one notification and of a hundred by turns.
func (r *rig) sealedRounds(ctx context.Context, d *daemon, to target) (row, error) {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	defer func() { _ = client.Close() }()
	cost := map[int][]float64{}
	for range batchRounds {
		for _, size := range []int{1, batchOf} {
			if err := d.operate(ctx, "sinks/hook/pause"); err != nil {
				return row{}, err
			}
			if err := parkSealed(ctx, client, size); err != nil {
				return row{}, err
			}
			got, err := to.timed(d.cmd.Process.Pid, batchSealed, func() error { return d.operate(ctx, "sinks/hook/resume") }, func() error {
				return until(ctx, 10*time.Second, func() error {
					n, err := client.ZCard(ctx, "hubrelay:retry:hook").Result()
					if err == nil && n > 0 {
						err = fmt.Errorf("%d are parked", n)
					}
					return err
				})
			})
			if err != nil {
				return row{}, err
			}
			cost[size] = append(cost[size], got.cost)
		}
	}
	return newRow("a sealed batch of 100, claimed, sent and settled", slices.Min(cost[batchOf]), "us CPU",
		"a delivery of one", slices.Min(cost[1])).ratioAtMost(1.5), nil
}

// parkSealed parks deliveries of so many notifications, due at once, as the daemon parks them (relay/deliver/encoding.go).
func parkSealed(ctx context.Context, client *redis.Client, size int) error {
	keys, err := backbone.NewKeys("hubrelay", 1, false)
	if err != nil {
		return err
	}
	var one strings.Builder
	for _, s := range []string{entryID, "container.instance.state.changed", benchHub, "5f0c8a7e9d3b2a1c4e6f8a91", "1763740000000-0", event} {
		fmt.Fprintf(&one, "%d:%s", len(s), s)
	}
	body := fmt.Sprintf(`{"made":0,"attempts":[],"batch":%t}`, size > 1) + "\n" + strings.Repeat(fmt.Sprintf("%d:%s", one.Len(), one.String()), size)
	_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range batchSealed {
			id, now := fmt.Sprintf("%024x", i), float64(time.Now().UnixMilli())
			pipe.HSet(ctx, keys.Parked("hook"), id, body)
			pipe.ZAdd(ctx, keys.Since("hook"), redis.Z{Score: now, Member: id})
			pipe.ZAdd(ctx, keys.Retry("hook"), redis.Z{Score: now, Member: id})
		}
		return nil
	})
	return err
}
