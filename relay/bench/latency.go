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

// measureLatency compares the delays of deliveries with the bare loop. A delay starts when a message is due and ends
// when a waiting client has read it. For the daemon it includes the publish request and the path through Redis, for the
// loop the writes to earlier clients.
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

// latencyRounds is the number of rounds that count. The 99th percentile of the same server differs by a factor of two
// between rounds of a second, and medians of five rounds differ by a tenth between runs.
const latencyRounds = 15

// compareLatency compares the medians of the rounds' 99th percentiles.
func (r *rig) compareLatency(ctx context.Context, what string, l load) (row, error) {
	ours, floor, err := r.inTurns(ctx, l, latencyRounds,
		func(round int, server *part, theirs listeners, d *daemon, mine listeners) (ours, floor float64, err error) {
			if _, err := theirs.serveRound(ctx, server, round*l.deliveryCount()); err != nil {
				return 0, 0, err
			}
			if err := d.publishPaced(l); err != nil {
				return 0, 0, err
			}
			if _, err := mine.waitFrames(ctx, round*l.deliveryCount()); err != nil {
				return 0, 0, err
			}
			if floor, err = theirs.takeP99(); err != nil {
				return 0, 0, err
			}
			ours, err = mine.takeP99()
			return ours, floor, err
		}, "-watch")
	if err != nil {
		return row{}, err
	}
	fmt.Fprintf(os.Stderr, "%s: rounds of %.1f ms, and of the bare loop %.1f ms\n", what, ours, floor)
	return newRow(what, medianOf(ours), "ms", "one write each", medianOf(floor)), nil
}

// takeP99 returns the 99th percentile of the delays in milliseconds since the last call.
func (l listeners) takeP99() (float64, error) {
	answer, err := l.sendAndRead("p99")
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseFloat(answer, 64)
	return ns / float64(time.Millisecond), err
}

const (
	returners   = 1000
	missedEach  = 1000
	returnEvery = 50 * time.Millisecond
	returnLive  = 100 // messages before the return

	// A round takes ten seconds, and about twenty messages arrive while the clients return. The 99th percentile is the
	// latest of them, so one short pause of the machine can spoil a round.
	returnRounds      = 5
	returnSpareRounds = 5
)

// measureReturn disconnects 1,000 clients, which reconnect at once, each 1,000 messages back. It compares the delays of
// other clients during that time with their delays before.
func measureReturn(ctx context.Context, r *rig) ([]row, error) {
	all, err := runCalmRounds(returnRounds, returnSpareRounds, func(int) (returned, error) { return r.returnOnce(ctx) })
	if err != nil {
		return nil, err
	}
	var took, quiet, busy []float64
	for _, c := range all {
		took, quiet, busy = append(took, c.took), append(quiet, c.quiet), append(busy, c.busy)
	}
	fmt.Fprintf(os.Stderr,
		"1,000 clients returned in %.2f s; p99 of the others %.2f ms before and %.2f ms during that\n", took, quiet,
		busy)
	return []row{
		newRow("1,000 clients back, each missing 1,000 messages", medianOf(took), "s", "the bar", 3).atMost(3),
		newRow("p99 of 500 others during the return, 20 messages/s", medianOf(busy), "ms", "before",
			medianOf(quiet)).ratioAtMost(2),
	}, nil
}

// returned is the result of one return: the seconds until all clients were current, and the 99th percentiles of the
// other clients in milliseconds, before and during the return.
type returned struct{ took, quiet, busy float64 }

// returnOnce measures one return with its own daemon.
func (r *rig) returnOnce(ctx context.Context) (one returned, err error) {
	err = r.withDaemon(ctx, "", func(d *daemon) error {
		others, err := startClients(ctx, d.listen, fanClients, "-watch")
		if err != nil {
			return err
		}
		defer others.stop()
		before, err := startClients(ctx, d.listen, returners, "-more", "&cursor=true", "-often", "10ms")
		if err != nil {
			return err
		}
		err = d.publishPaced(load{fanClients, returnLive, returnEvery})
		before.stop()
		if err != nil {
			return err
		}
		seen := returnLive * fanClients
		if _, err := others.waitFrames(ctx, seen); err != nil {
			return err
		}
		if one.quiet, err = others.takeP99(); err != nil {
			return err
		}
		cursor, err := d.cursorNow()
		if err != nil {
			return err
		}
		if err := d.publishBatches(missedEach); err != nil {
			return err
		}
		if _, err := others.waitFrames(ctx, seen+(1+missedEach)*fanClients); err != nil {
			return err
		}
		if _, err := others.takeP99(); err != nil { // discard the delays of the burst
			return err
		}
		one.took, err = d.comeBack(ctx, cursor)
		if err != nil {
			return err
		}
		one.busy, err = others.takeP99()
		return err
	})
	return one, err
}

// comeBack returns the seconds until all clients are current, while messages continue.
func (d *daemon) comeBack(ctx context.Context, cursor string) (float64, error) {
	live, stop := context.WithCancel(ctx)
	published := make(chan error, 1)
	go func() {
		published <- d.publishUntil(live)
	}()
	began := time.Now()
	back, err := startClients(ctx, d.listen, returners, "-more", "&after="+cursor, "-often", "10ms")
	if err == nil {
		defer back.stop()
		err = retryUntil(ctx, 30*time.Second, func() error {
			answer, err := back.sendAndRead("fewest")
			if err != nil {
				return err
			}
			if n, err := strconv.Atoi(answer); err != nil || n < missedEach {
				return fmt.Errorf("a client has %s of %d messages", answer, missedEach)
			}
			return nil
		})
	}
	took := time.Since(began).Seconds()
	stop()
	if failed := <-published; err == nil {
		err = failed
	}
	return took, err
}

// publishUntil publishes at the rate of the others until ctx ends.
func (d *daemon) publishUntil(ctx context.Context) error {
	publisher, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer publisher.close()
	tick := time.NewTicker(returnEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case due := <-tick.C:
			if err := publisher.postRequest(stampedRequest(due)); err != nil {
				return err
			}
		}
	}
}

// publishBatches publishes as fast as it can.
func (d *daemon) publishBatches(n int) error {
	publisher, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer publisher.close()
	batch := publishRequest("application/x-ndjson", repeatBytes([]byte(event+"\n"), batchSize))
	for range n / batchSize {
		if err := publisher.postRequest(batch); err != nil {
			return err
		}
	}
	return nil
}

// cursorNow publishes once and returns the cursor of that notification.
func (d *daemon) cursorNow() (string, error) {
	conn, err := net.Dial("tcp", d.listen)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	got, err := openWebsocket(conn, d.listen, openTo{hub: benchHub, more: "&cursor=true"})
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
