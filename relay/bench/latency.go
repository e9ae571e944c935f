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

// measureLatency compares how late the deliveries come with those of the bare loop. Both are measured from the time when
// a message was due until its client, which waits for it, has read it: at the daemon that includes the request that
// publishes it and its way through Redis, in the loop the writes to those who come before.
func measureLatency(ctx context.Context, r *rig) ([]row, error) {
	seldom, err := r.latency(ctx, "p99, 500 clients, 20 messages/s", load{fanClients, 40, 50 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	often, err := r.latency(ctx, "p99, 500 clients, 200 messages/s", load{fanClients, 200, 5 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return []row{seldom.ratioAtMost(1.5), often.ratioAtMost(1)}, nil
}

// latencyRounds is how many rounds count: the 99th percentiles of one and the same server differ twofold between rounds of a
// second or two, and the medians of five rounds by a tenth from run to run.
const latencyRounds = 15

// latency compares the medians of the rounds' 99th percentiles.
func (r *rig) latency(ctx context.Context, what string, l load) (row, error) {
	ours, floor, err := r.inTurns(ctx, l, latencyRounds, func(round int, server *part, theirs listeners, d *daemon, mine listeners) (ours, floor float64, err error) {
		if _, err := theirs.served(ctx, server, round*l.deliveries()); err != nil {
			return 0, 0, err
		}
		if err := d.publishPaced(l); err != nil {
			return 0, 0, err
		}
		if _, err := mine.arrived(ctx, round*l.deliveries()); err != nil {
			return 0, 0, err
		}
		if floor, err = theirs.p99(); err != nil {
			return 0, 0, err
		}
		ours, err = mine.p99()
		return ours, floor, err
	}, "-watch")
	if err != nil {
		return row{}, err
	}
	fmt.Fprintf(os.Stderr, "%s: rounds of %.1f ms, and of the bare loop %.1f ms\n", what, ours, floor)
	return newRow(what, median(ours), "ms", "one write each", median(floor)), nil
}

// p99 is in milliseconds, of what came since it was asked last.
func (l listeners) p99() (float64, error) {
	answer, err := l.ask("p99")
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

	// A round takes ten seconds, and some twenty messages come while the clients return: the 99th percentile is that of the
	// latest of them, one of which a moment in which the machine stands still is enough to delay.
	returnRounds      = 5
	returnSpareRounds = 5
)

// measureReturn lets 1,000 clients lose their connections and come back at once, each behind 1,000 messages, while others
// listen. What is late for those is compared with what was while all were connected.
func measureReturn(ctx context.Context, r *rig) ([]row, error) {
	all, err := calmest(returnRounds, returnSpareRounds, func(int) (returned, error) { return r.returnOnce(ctx) })
	if err != nil {
		return nil, err
	}
	var took, quiet, busy []float64
	for _, c := range all {
		took, quiet, busy = append(took, c.took), append(quiet, c.quiet), append(busy, c.busy)
	}
	fmt.Fprintf(os.Stderr, "1,000 clients came back in %.2f s; p99 of the others %.2f ms before and %.2f ms meanwhile\n", took, quiet, busy)
	return []row{
		newRow("1,000 clients back, each behind 1,000 messages", median(took), "s", "the bar", 3).atMost(3),
		newRow("p99 of 500 others meanwhile, 20 messages/s", median(busy), "ms", "before", median(quiet)).ratioAtMost(2),
	}, nil
}

// returned is one return: the seconds until everybody had everything, and the milliseconds of the others' 99th percentiles
// before and meanwhile.
type returned struct{ took, quiet, busy float64 }

// returnOnce measures one return to a daemon of its own.
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
		if _, err := others.arrived(ctx, seen); err != nil {
			return err
		}
		if one.quiet, err = others.p99(); err != nil {
			return err
		}
		cursor, err := d.cursorNow()
		if err != nil {
			return err
		}
		if err := d.publishBatches(missedEach); err != nil {
			return err
		}
		if _, err := others.arrived(ctx, seen+(1+missedEach)*fanClients); err != nil {
			return err
		}
		if _, err := others.p99(); err != nil { // of a burst, which is none of theirs
			return err
		}
		one.took, err = d.comeBack(ctx, cursor)
		if err != nil {
			return err
		}
		one.busy, err = others.p99()
		return err
	})
	return one, err
}

// comeBack returns after how many seconds everybody has everything, while messages go on.
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
		err = until(ctx, 30*time.Second, func() error {
			answer, err := back.ask("fewest")
			if err != nil {
				return err
			}
			if n, err := strconv.Atoi(answer); err != nil || n < missedEach {
				return fmt.Errorf("somebody has %s of %d messages", answer, missedEach)
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
			if err := publisher.post(stamped(due)); err != nil {
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
	batch := request("application/x-ndjson", repeat([]byte(event+"\n"), batchSize))
	for range n / batchSize {
		if err := publisher.post(batch); err != nil {
			return err
		}
	}
	return nil
}

// cursorNow publishes once and returns the cursor behind that.
func (d *daemon) cursorNow() (string, error) {
	conn, err := net.Dial("tcp", d.listen)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	got, err := upgrade(conn, d.listen, openTo{hub: benchHub, more: "&cursor=true"})
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
