package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	manyMessages = 10_000
	manyRounds   = 2
	manyRepeats  = 3 // per round

	steadyInterval = 2 * time.Millisecond // 500 notifications a second
	steadyCount    = 200                  // in 0.4 s: some of these short rounds are undisturbed
	steadyRounds   = 15
	steadySettle   = 100 * time.Millisecond // after a change, not part of the measurement
)

// measureMany compares the CPU time per notification of one sink, from publishing to delivery, with and without other
// sinks that do not match. The best value of each counts.
func measureMany(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	numbers := []int{1, 100, 1000}
	costs := []float64{math.Inf(1), math.Inf(1), math.Inf(1)}
	for range manyRounds {
		for i, n := range numbers {
			lines := []string{to.webhookConfig("hook", hookTopics)}
			for other := 1; other < n; other++ {
				lines = append(lines, to.webhookConfig("other"+strconv.Itoa(other), "billing.*"))
			}
			err := r.runWithDaemon(ctx, sinksConfig(lines...), func(d *daemon) error {
				if err := sleep(ctx, time.Second); err != nil { // work of the start is not part of the measurement
					return err
				}
				for range manyRepeats {
					got, err := r.runDelivery(ctx, d, to, manyMessages, func() error { return d.publish(manyMessages) })
					if err != nil {
						return err
					}
					costs[i] = min(costs[i], got.cost)
				}
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("%d sinks: %w", n, err)
			}
		}
	}
	const unit = "us CPU/notification"
	return []row{
		newRow("100 sinks, one matches", costs[1], unit, "one sink", costs[0]).ratioAtMost(1.15),
		newRow("1,000 sinks, one matches", costs[2], unit, "one sink", costs[0]).ratioAtMost(1.5),
	}, nil
}

// measureHang compares the latency at a steady rate while another sink is paused and while the receiver of that sink
// does not respond. The best round of each counts.
func measureHang(ctx context.Context, r *rig) ([]row, error) {
	to, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer to.stop()
	hung, err := startReceiver(ctx)
	if err != nil {
		return nil, err
	}
	defer hung.stop()
	without, during := math.Inf(1), math.Inf(1)
	config := sinksConfig(to.webhookConfig("steady", hookTopics), hung.webhookConfig("hung", hookTopics))
	err = r.runWithDaemon(ctx, config, func(d *daemon) error {
		if err := d.postAdmin(ctx, "sinks/hung/pause"); err != nil {
			return err
		}
		if _, err := d.measureLatency(to); err != nil { // warm-up
			return err
		}
		for range steadyRounds {
			late, err := d.measureLatency(to)
			if err != nil {
				return err
			}
			without = min(without, late)
			if late, err = d.latencyWhileHanging(ctx, to, hung); err != nil {
				return err
			}
			during = min(during, late)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []row{
		newRow("p99 while another sink hangs", during, "ms from published to received",
			"without it", without).ratioAtMost(1.3),
	}, nil
}

// latencyWhileHanging returns the latency of one receiver while the other one does not respond.
func (d *daemon) latencyWhileHanging(ctx context.Context, to, hung target) (late float64, err error) {
	if _, err := hung.request("reset"); err != nil {
		return 0, err
	}
	if _, err := hung.request("hold"); err != nil {
		return 0, err
	}
	if err := d.postAdmin(ctx, "sinks/hung/resume"); err != nil {
		return 0, err
	}
	if _, err := hung.request("await", hookConcurrency); err != nil { // the maximum in flight
		return 0, err
	}
	if err := sleep(ctx, steadySettle); err != nil {
		return 0, err
	}
	if late, err = d.measureLatency(to); err != nil {
		return 0, err
	}
	if err := d.postAdmin(ctx, "sinks/hung/pause"); err != nil {
		return 0, err
	}
	if _, err := hung.request("answer", 0*time.Second); err != nil {
		return 0, err
	}
	return late, sleep(ctx, steadySettle)
}

// measureLatency publishes at a steady rate and returns the 99th percentile of the latencies in milliseconds.
func (d *daemon) measureLatency(to target) (float64, error) {
	c, err := dialHTTP(d.listen)
	if err != nil {
		return 0, err
	}
	defer c.close()
	if _, err := to.request("reset"); err != nil {
		return 0, err
	}
	err = runPaced(steadyCount, steadyInterval,
		func(time.Time) error { return c.postRequest(newStampedRequest(time.Now())) })
	if err != nil {
		return 0, err
	}
	if _, err := to.request("await", steadyCount); err != nil {
		return 0, err
	}
	return to.requestP99()
}

// newStampedRequest returns a request that publishes the event with its time as object ID.
func newStampedRequest(at time.Time) []byte {
	_, rest, _ := strings.Cut(event, eventObject)
	stamp := publishedAt + strconv.FormatInt(at.UnixNano(), 10)
	return newPublishRequest("application/json", []byte(eventStart+stamp+rest))
}

const (
	eventStart  = `{"topic":"container.instance.state.changed","object":{"id":`
	eventObject = eventStart + `"5f0c8a7e9d3b2a1c4e6f8a92`
)
