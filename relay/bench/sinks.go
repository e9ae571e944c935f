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
	manyTimes    = 3 // in each round

	steadyEvery  = 2 * time.Millisecond // 500 notifications a second
	steadyFor    = 200                  // 0.4 seconds: some short rounds are free of noise from other machines
	steadyRounds = 15
	steadyAfter  = 100 * time.Millisecond // of a change, which is not part of it
)

// measureMany compares what a notification for one sink costs the daemon, from being published to being delivered, when
// there is only that sink and when there are others that do not want it. Of each the best time counts.
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
			err := r.withDaemon(ctx, sinksConfig(lines...), func(d *daemon) error {
				if err := sleepFor(ctx, time.Second); err != nil { // what it does at its start is not part of it
					return err
				}
				for range manyTimes {
					got, err := r.deliverBacklog(ctx, d, to, manyMessages,
						func() error { return d.publish(manyMessages) })
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

// measureHang compares the delays of notifications at a steady rate while another sink is paused, and while its
// receiver does not answer. The best round of each counts.
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
	without, beside := math.Inf(1), math.Inf(1)
	err = r.withDaemon(ctx, sinksConfig(to.webhookConfig("steady", hookTopics), hung.webhookConfig("hung", hookTopics)),
		func(d *daemon) error {
			if err := d.postAdmin(ctx, "sinks/hung/pause"); err != nil {
				return err
			}
			if _, err := d.measureSteady(to); err != nil { // connections and caches
				return err
			}
			for range steadyRounds {
				late, err := d.measureSteady(to)
				if err != nil {
					return err
				}
				without = min(without, late)
				if late, err = d.measureHung(ctx, to, hung); err != nil {
					return err
				}
				beside = min(beside, late)
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	return []row{
		newRow("p99 while another sink hangs", beside, "ms from published to received", "without it",
			without).ratioAtMost(1.3),
	}, nil
}

// measureHung returns how late notifications come to one receiver while the other does not answer.
func (d *daemon) measureHung(ctx context.Context, to, hung target) (late float64, err error) {
	if _, err := hung.sendAndRead("reset"); err != nil {
		return 0, err
	}
	if _, err := hung.sendAndRead("hold"); err != nil {
		return 0, err
	}
	if err := d.postAdmin(ctx, "sinks/hung/resume"); err != nil {
		return 0, err
	}
	if _, err := hung.sendAndRead("await", hookConcurrency); err != nil { // all that it may have in flight
		return 0, err
	}
	if err := sleepFor(ctx, steadyAfter); err != nil {
		return 0, err
	}
	if late, err = d.measureSteady(to); err != nil {
		return 0, err
	}
	if err := d.postAdmin(ctx, "sinks/hung/pause"); err != nil {
		return 0, err
	}
	if _, err := hung.sendAndRead("answer", 0*time.Second); err != nil {
		return 0, err
	}
	return late, sleepFor(ctx, steadyAfter)
}

// measureSteady publishes at a steady rate. It returns the 99th percentile of the delays in milliseconds.
func (d *daemon) measureSteady(to target) (float64, error) {
	c, err := dialHTTP(d.listen)
	if err != nil {
		return 0, err
	}
	defer c.close()
	if _, err := to.sendAndRead("reset"); err != nil {
		return 0, err
	}
	err = runPaced(steadyFor, steadyEvery, func(time.Time) error { return c.postRequest(stampedRequest(time.Now())) })
	if err != nil {
		return 0, err
	}
	if _, err := to.sendAndRead("await", steadyFor); err != nil {
		return 0, err
	}
	answer, err := to.sendAndRead("p99")
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseFloat(answer, 64)
	return ns / float64(time.Millisecond), err
}

// stampedRequest is the request that publishes the event with its time as the id of its object.
func stampedRequest(at time.Time) []byte {
	_, rest, _ := strings.Cut(event, eventObject)
	return publishRequest("application/json", []byte(eventStart+publishedAt+strconv.FormatInt(at.UnixNano(), 10)+rest))
}

const (
	eventStart  = `{"topic":"container.instance.state.changed","object":{"id":`
	eventObject = eventStart + `"5f0c8a7e9d3b2a1c4e6f8a92`
)
