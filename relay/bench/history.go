package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	historyRounds   = 7
	historyMessages = 20_000
	historyRecords  = 2_000_000
	historyFailures = 100_000
	historyRequests = 300
)

// measureHistory compares deliveries with and without the history, and reads a history of two million records.
func measureHistory(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	var rates, costs []row
	var perDelivery float64
	for i := range historyRounds + 1 {
		var with, without drainResult
		drain := func(deliveries string, result *drainResult) func() error {
			return func() error {
				config := "history: {deliveries: " + deliveries + "}\n" + sinksConfig(to.webhookConfig("hook", hookTopics))
				return r.runWithDaemon(ctx, config, func(d *daemon) (err error) {
					if _, err = r.drainBacklog(ctx, d, to, historyMessages/10); err != nil { // to warm up
						return err
					}
					before, err := r.historyBytes(ctx)
					if err != nil {
						return err
					}
					if *result, err = r.drainBacklog(ctx, d, to, historyMessages); err != nil || deliveries == "none" {
						return err
					}
					if err := sleep(ctx, time.Second); err != nil { // the last records are written
						return err
					}
					after, err := r.historyBytes(ctx)
					perDelivery = float64(after-before) / historyMessages
					return err
				})
			}
		}
		for _, measure := range alternate(i, drain("all", &with), drain("none", &without)) {
			if err := measure(); err != nil {
				return nil, err
			}
		}
		if i == 0 {
			continue
		}
		fmt.Fprintf(os.Stderr, "history: %.1f us CPU/request, without %.1f\n", with.cost, without.cost)
		const baseline = "without a history"
		rates = append(rates, newRow("webhook with a history", with.rate, "requests/s", baseline, without.rate).ratioAtLeast(0.95))
		costs = append(costs, newRow("the same, CPU of a request", with.cost, "us CPU/request", baseline, without.cost).
			ratioAtMost(1.05))
	}
	rows := []row{
		medianRatio(rates), medianRatio(costs),
		newRow("the same, Redis memory of a delivery", perDelivery, "bytes", "the goal", 60).atMost(60),
	}
	failures, err := r.measureFailures(ctx, to)
	if err != nil {
		return nil, err
	}
	reads, err := r.measureHistoryReads(ctx, to)
	return append(append(rows, failures), reads...), err
}

// historyBytes returns the memory of the history in Redis.
func (r *rig) historyBytes(ctx context.Context) (sum int64, err error) {
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(ctx, "hubrelay:history:*").Result()
	for _, key := range keys {
		n, err := client.MemoryUsage(ctx, key, 0).Result()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, err
}

// measureHistoryReads reads a history of two million deliveries.
func (r *rig) measureHistoryReads(ctx context.Context, to target) ([]row, error) {
	var shows, lists []time.Duration
	err := r.runWithDaemon(ctx, "history: {max_bytes: 1GiB}\n"+sinksConfig(to.webhookConfig("hook", hookTopics)), func(d *daemon) error {
		ids, err := r.fillHistory(ctx)
		if err != nil {
			return err
		}
		for range historyRequests {
			took, err := d.timeAdmin(ctx, "events/"+ids[rand.N(len(ids))])
			if err != nil {
				return err
			}
			shows = append(shows, took)
		}
		for range historyRequests / 10 {
			took, err := d.timeAdmin(ctx, "deliveries?sink=hook&states=delivered&limit=500&topics=billing.*")
			if err != nil {
				return err
			}
			lists = append(lists, took)
		}
		return nil
	})
	const records = "2 million records"
	return []row{
		newRow("events show, p99", float64(percentile(shows, 99).Microseconds())/1000, "ms", records, 10).atMost(10),
		newRow("deliveries list, a filtered page, p99", float64(percentile(lists, 99).Microseconds())/1000, "ms", records, 100).
			atMost(100),
	}, err
}

// fillHistory records two million deliveries within a day, and returns some of the IDs of their events.
func (r *rig) fillHistory(ctx context.Context) (ids []string, err error) {
	return r.recordAttempts(ctx, historyRecords, history.Attempt{State: history.StateDelivered, Status: 200})
}

// measureFailures measures the Redis memory of failed attempts, with an error of usual length.
func (r *rig) measureFailures(ctx context.Context, to target) (row, error) {
	var bytes float64
	err := r.runWithDaemon(ctx, sinksConfig(to.webhookConfig("hook", hookTopics)), func(*daemon) error {
		before, err := r.historyBytes(ctx)
		if err != nil {
			return err
		}
		if _, err := r.recordAttempts(ctx, historyFailures, history.Attempt{
			State: history.StateRetrying, Outcome: relay.OutcomeRetry, Status: 503,
			Error: `post to billing.example.com: status 503: {"error":"the service is overloaded, please try again later"}`,
		}); err != nil {
			return err
		}
		after, err := r.historyBytes(ctx)
		bytes = float64(after-before) / historyFailures
		return err
	})
	return newRow("Redis memory of a failed attempt", bytes, "bytes", "the goal", 300).atMost(300), err
}

// recordAttempts records attempts like a within a day, each for another event, and returns some of the IDs of these events.
func (r *rig) recordAttempts(ctx context.Context, count int, a history.Attempt) (ids []string, err error) {
	conn, err := redisconn.Open(ctx, redisconn.Options{URL: r.redis.redisURL()})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var lost lostRecords
	recorder := history.NewRecorder(history.RecorderOptions{
		Store: history.NewStore(conn, conn.Keys()), Node: "node-0", Observer: &lost,
		Retention: func() history.Retention { return history.Retention{MaxAge: 48 * time.Hour, MaxBytes: 1 << 30} },
		Log:       slog.New(slog.DiscardHandler),
	})
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- recorder.Run(running) }()
	start := time.Now().Add(-24 * time.Hour)
	topics := []string{"container.created", "container.deleted", "job.created", "billing.paid"}
	recordBytes := 32 + len(a.Error)
	for i := range count {
		at := start.Add(24 * time.Hour / time.Duration(count) * time.Duration(i))
		id := make([]byte, 12)
		_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}).Read(id)
		seconds := uint32(at.Unix())
		id[0], id[1], id[2], id[3] = byte(seconds>>24), byte(seconds>>16), byte(seconds>>8), byte(seconds)
		n := relay.Notification{
			ID: hex.EncodeToString(id), Topic: topics[i%len(topics)], Hub: benchHub, Account: "acme",
			Cursor: fmt.Sprintf("%d-%d", at.UnixMilli(), i%1000),
		}
		a.Sink, a.Number, a.Time, a.Duration = "hook", 1, at, time.Millisecond
		recorder.RecordAttempt(&n, &a)
		if i%1000 == 0 {
			ids = append(ids, n.ID)
		}
		if i%(640_000/recordBytes) == 0 { // less than the recorder can hold
			if err := sleep(ctx, 20*time.Millisecond); err != nil {
				break
			}
		}
	}
	stop()
	if err = <-done; err == nil && lost.Load() > 0 {
		err = fmt.Errorf("%d records were dropped", lost.Load())
	}
	return ids, err
}

// lostRecords counts dropped records.
type lostRecords struct{ atomic.Int64 }

func (*lostRecords) HistoryStored(int)      {}
func (l *lostRecords) HistoryDropped(n int) { l.Add(int64(n)) }

// timeAdmin returns the time of a GET of the admin API.
func (d *daemon) timeAdmin(ctx context.Context, path string) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/"+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	resp, err := d.operator.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s %s", path, resp.Status, body)
	}
	if err != nil {
		return 0, err
	}
	return time.Since(start), nil
}
