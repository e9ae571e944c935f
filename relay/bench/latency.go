package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// measureLatency compares the latency of deliveries with that of the bare loop. Both are measured from the time when
// a message was due until its client, which waits for it, has read it. For the daemon, that includes the publish
// request and Redis; for the loop, the writes to earlier connections.
func measureLatency(ctx context.Context, r *rig) ([]row, error) {
	seldom, err := r.compareLatency(ctx, "p99, 500 clients, 20 messages/s", load{fanClients, 40, 50 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	often, err := r.compareLatency(ctx, "p99, 500 clients, 200 messages/s", load{fanClients, 200, 5 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return []row{seldom.ratioAtMost(1.5), often.ratioAtMost(1)}, nil
}

// latencyRounds is the number of rounds. The 99th percentile of rounds of one or two seconds varies by a factor of
// two on the same server, the median of five rounds by a tenth between runs.
const latencyRounds = 15

// compareLatency compares the medians of the 99th percentiles of the rounds.
func (r *rig) compareLatency(ctx context.Context, what string, l load) (row, error) {
	ours, floor, err := r.runAlternately(ctx, l, latencyRounds, func(n int, s sides) (ours, floor float64, err error) {
		if _, err := s.theirs.serveAndWait(ctx, s.server, n*l.deliveryCount()); err != nil {
			return 0, 0, err
		}
		if err := s.daemon.publishPaced(l); err != nil {
			return 0, 0, err
		}
		if _, err := s.mine.waitForFrames(ctx, n*l.deliveryCount()); err != nil {
			return 0, 0, err
		}
		if floor, err = s.theirs.requestP99(); err != nil {
			return 0, 0, err
		}
		ours, err = s.mine.requestP99()
		return ours, floor, err
	}, "-watch")
	if err != nil {
		return row{}, err
	}
	fmt.Fprintf(os.Stderr, "%s: rounds of %.1f ms, and of the bare loop %.1f ms\n", what, ours, floor)
	return newRow(what, median(ours), "ms", "one write each", median(floor)), nil
}

const (
	returners      = 1000
	missedEach     = 1000
	returnInterval = 50 * time.Millisecond
	returnLive     = 100 // messages before the disconnect

	// A round takes ten seconds, and about twenty messages arrive while the clients return. So the 99th percentile is
	// the slowest of them, which a short stall of the machine can delay.
	returnRounds      = 5
	returnSpareRounds = 5
)

// measureReturn disconnects 1,000 clients, publishes 1,000 messages, and reconnects the clients at once, while others
// listen. It compares the latency of the others with that before.
func measureReturn(ctx context.Context, r *rig) ([]row, error) {
	runReturn := func(int) (returnResult, error) { return r.runReturn(ctx) }
	all, err := runCalmRounds(returnRounds, returnSpareRounds, runReturn)
	if err != nil {
		return nil, err
	}
	var took, quiet, busy []float64
	for _, c := range all {
		took, quiet, busy = append(took, c.took), append(quiet, c.quiet), append(busy, c.busy)
	}
	fmt.Fprintf(os.Stderr, "1,000 clients returned in %.2f s; p99 of the others: %.2f ms before, %.2f ms during it\n",
		took, quiet, busy)
	return []row{
		newRow("1,000 clients resume, each after 1,000 messages", median(took), "s", "the bar", 3).atMost(3),
		newRow("p99 of 500 other clients during that, 20 messages/s", median(busy), "ms",
			"before", median(quiet)).ratioAtMost(2),
	}, nil
}

// returnResult has the seconds until all clients had all messages, and the 99th percentiles of the other clients in
// milliseconds, before (quiet) and during the return (busy).
type returnResult struct{ took, quiet, busy float64 }

// runReturn measures one return with a new daemon.
func (r *rig) runReturn(ctx context.Context) (one returnResult, err error) {
	err = r.runWithDaemon(ctx, "", func(d *daemon) error {
		others, err := startClients(ctx, d.listen, fanClients, "-watch")
		if err != nil {
			return err
		}
		defer others.stop()
		before, err := startClients(ctx, d.listen, returners, "-more", "&cursor=true", "-often", "10ms")
		if err != nil {
			return err
		}
		err = d.publishPaced(load{fanClients, returnLive, returnInterval})
		before.stop()
		if err != nil {
			return err
		}
		seen := returnLive * fanClients
		if _, err := others.waitForFrames(ctx, seen); err != nil {
			return err
		}
		if one.quiet, err = others.requestP99(); err != nil {
			return err
		}
		cursor, err := d.cursorNow()
		if err != nil {
			return err
		}
		if err := d.publishBatches(missedEach); err != nil {
			return err
		}
		if _, err := others.waitForFrames(ctx, seen+(1+missedEach)*fanClients); err != nil {
			return err
		}
		if _, err := others.requestP99(); err != nil { // discards the latencies of the burst
			return err
		}
		one.took, err = d.reconnectAll(ctx, cursor)
		if err != nil {
			return err
		}
		one.busy, err = others.requestP99()
		return err
	})
	return one, err
}

// reconnectAll returns the seconds until all clients have all messages, while publishing continues.
func (d *daemon) reconnectAll(ctx context.Context, cursor string) (float64, error) {
	live, stop := context.WithCancel(ctx)
	published := make(chan error, 1)
	go func() {
		published <- d.publishUntil(live)
	}()
	startedAt := time.Now()
	back, err := startClients(ctx, d.listen, returners, "-more", "&after="+cursor, "-often", "10ms")
	if err == nil {
		defer back.stop()
		err = waitUntil(ctx, 30*time.Second, func() error {
			response, err := back.request("fewest")
			if err != nil {
				return err
			}
			if n, err := strconv.Atoi(response); err != nil || n < missedEach {
				return fmt.Errorf("a client has %s of %d messages", response, missedEach)
			}
			return nil
		})
	}
	took := time.Since(startedAt).Seconds()
	stop()
	if failed := <-published; err == nil {
		err = failed
	}
	return took, err
}

// publishUntil publishes at a steady rate until ctx ends.
func (d *daemon) publishUntil(ctx context.Context) error {
	publisher, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer publisher.close()
	tick := time.NewTicker(returnInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case due := <-tick.C:
			if err := publisher.postRequest(newStampedRequest(due)); err != nil {
				return err
			}
		}
	}
}

// publishBatches publishes as fast as possible.
func (d *daemon) publishBatches(n int) error {
	publisher, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer publisher.close()
	batch := newPublishRequest("application/x-ndjson", repeatBytes([]byte(event+"\n"), batchSize))
	for range n / batchSize {
		if err := publisher.postRequest(batch); err != nil {
			return err
		}
	}
	return nil
}

// cursorNow publishes once and returns the cursor of that message.
func (d *daemon) cursorNow() (string, error) {
	conn, err := net.Dial("tcp", d.listen)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	got, err := upgradeWebSocket(conn, d.listen, connectOptions{hub: benchHub, more: "&cursor=true"})
	if err != nil {
		return "", err
	}
	if err := d.publishPaced(load{1, 1, time.Millisecond}); err != nil {
		return "", err
	}
	for buf := make([]byte, 4<<10); ; {
		if _, rest, ok := bytes.Cut(got, []byte(`"cursor":"`)); ok {
			if cursor, _, ok := bytes.Cut(rest, []byte(`"`)); ok {
				return string(cursor), nil
			}
		}
		n, err := conn.Read(buf)
		if err != nil {
			return "", fmt.Errorf("wait for a message with a cursor: %w", err)
		}
		got = append(got, buf[:n]...)
	}
}
