package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/hubrelay/hubrelay/relay/internal/replay"
)

const (
	scheduledRetries = 1_000_000
	dueRetries       = 100 // are due now, the others in ten days
	retryStep        = 10_000
	retrySettleTime  = 6 * time.Second // the daemon updates its metrics every 5 s
)

// measureRetries measures the memory of a daemon while Redis has a million scheduled retries of its sink: the peak
// from the start, including the attempts that are due and one update of its metrics.
func measureRetries(ctx context.Context, r *rig) ([]row, error) {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address, ReadTimeout: 20 * time.Second})
	defer func() { _ = client.Close() }()
	// The append-only file would grow by 1 GiB and does not affect the result.
	if err := client.ConfigSet(ctx, "appendonly", "no").Err(); err != nil {
		return nil, err
	}
	defer func() {
		_ = r.redis.flush()
		_ = client.ConfigSet(context.WithoutCancel(ctx), "appendonly", "yes").Err()
	}()
	if err := r.parkRetries(ctx, client); err != nil {
		return nil, fmt.Errorf("schedule a million retries: %w", err)
	}
	held, err := client.InfoMap(ctx, "memory").Result()
	if err != nil {
		return nil, err
	}
	var inRedis float64
	if _, err := fmt.Sscan(held["Memory"]["used_memory"], &inRedis); err != nil {
		return nil, err
	}
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	d, err := r.startDaemon(ctx, sinksConfig(to.webhookConfig("hook", hookTopics)))
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if _, err := to.request("await", dueRetries); err != nil {
		return nil, err
	}
	if err := sleep(ctx, retrySettleTime); err != nil {
		return nil, err
	}
	peak, err := memoryMiB(d.cmd.Process.Pid, "VmHWM")
	memory := newRow("1,000,000 scheduled retries, peak resident", peak, "MiB", "Redis", inRedis/(1<<20))
	return []row{memory.atMost(50)}, err
}

// parkRetries schedules one delivery like a replay does, and lets Redis copy it.
func (r *rig) parkRetries(ctx context.Context, client *redis.Client) error {
	if err := r.redis.flush(); err != nil {
		return err
	}
	keys, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		return err
	}
	const sink = "hook"
	stored := store.New(client, keys)
	replayer := replay.Replayer{
		Log: oneEntry{}, Retries: &stored.Retries, States: &stored.States, Memory: unlimitedMemory{},
	}
	if _, err := replayer.Replay(ctx, replay.Request{Sink: sink, Partitions: 1, After: replay.StartAt("0-0")}); err != nil {
		return err
	}
	repeat := redis.NewScript(`
local body = redis.call('HGET', KEYS[2], ARGV[1])
for i = ARGV[2], ARGV[2] + ARGV[3] - 1 do
  local id = string.format('%024x', i)
  local due = ARGV[5]
  if i < tonumber(ARGV[6]) then due = ARGV[4] end
  redis.call('HSET', KEYS[2], id, body)
  redis.call('ZADD', KEYS[1], due, id)
  redis.call('ZADD', KEYS[3], ARGV[4], id)
end`)
	now := time.Now()
	later := now.Add(10 * 24 * time.Hour)
	scriptKeys := []string{store.RetryKey(keys, sink), store.RecordsKey(keys, sink), store.ArrivalKey(keys, sink)}
	for first := 1; first < scheduledRetries; first += retryStep {
		n := min(retryStep, scheduledRetries-first)
		err := repeat.Run(ctx, client, scriptKeys,
			entryID, first, n, now.UnixMilli(), later.UnixMilli(), dueRetries).Err()
		if err != nil && err != redis.Nil { //nolint:errorlint // go-redis does not wrap it
			return err
		}
	}
	n, err := client.ZCard(ctx, store.RetryKey(keys, sink)).Result()
	if err == nil && n != scheduledRetries {
		err = fmt.Errorf("got %d scheduled retries", n)
	}
	return err
}

const entryID = "5f0c8a7e9d3b2a1c4e6f8a92"

// unlimitedMemory never stops a replay.
type unlimitedMemory struct{}

// Measure implements [replay.Memory].
func (unlimitedMemory) Measure(context.Context) {}

// IsNearlyFull implements [replay.Memory].
func (unlimitedMemory) IsNearlyFull() bool { return false }

// oneEntry is a log with one entry.
type oneEntry struct{}

func (oneEntry) Range(_ context.Context, _ int, after string, _ int) ([]relay.Notification, error) {
	if after != "0-0" {
		return nil, nil
	}
	return []relay.Notification{{
		ID: entryID, Topic: "container.instance.state.changed", Hub: benchHub, Account: "5f0c8a7e9d3b2a1c4e6f8a91",
		Cursor: "1763740000000-0", Data: []byte(event),
	}}, nil
}

func (oneEntry) HasAllAfter(context.Context, int, string) (bool, error) { return true, nil }

func (oneEntry) FilledTo(context.Context, int, string) (string, error) { return "1763740000000-0", nil }

func (oneEntry) Queued(context.Context, int, string, []string) ([]bool, error) {
	return []bool{false}, nil
}

func (oneEntry) IsAfter(_, position string) bool { return position == "0-0" }
