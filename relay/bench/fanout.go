package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

const fanClients = 500

// load is a number of clients, and the messages for them.
type load struct {
	clients, messages int
	every             time.Duration
}

func (l load) deliveryCount() int { return l.clients * l.messages }

// perDelivery is CPU microseconds.
func (l load) perDelivery(cpu time.Duration) float64 {
	return float64(cpu) / float64(time.Microsecond) / float64(l.deliveryCount())
}

// measureFanout compares the CPU time of a delivery with a loop that makes one write per message and client.
func measureFanout(ctx context.Context, r *rig) ([]row, error) {
	seldom := load{fanClients, 200, 50 * time.Millisecond}
	often := load{fanClients, 2000, 5 * time.Millisecond}
	few, err := r.compareFanout(ctx, "fan-out, 500 clients, 20 messages/s", seldom)
	if err != nil {
		return nil, err
	}
	many, err := r.compareFanout(ctx, "fan-out, 500 clients, 200 messages/s", often)
	if err != nil {
		return nil, err
	}
	rows := []row{few.ratioAtMost(1.25), many.ratioAtMost(1.25)}
	gathered, plain, err := r.compareVariant(ctx, often, "websocket: {gather: 20ms}")
	if err != nil {
		return nil, err
	}
	rows = append(rows, newRow("the same, websocket.gather 20ms", gathered.cost, few.Unit, "without",
		plain.cost).ratioAtMost(0.8))
	compressed, plain, err := r.compareVariant(ctx, often, "websocket: {compression: {enabled: true}}", "-deflate")
	if err != nil {
		return nil, err
	}
	return append(rows,
		newRow("the same, websocket.compression", compressed.cost, few.Unit, "without", plain.cost).ratioAtMost(1.1),
		newRow("the same, bytes on the wire", float64(compressed.size), "bytes/delivery", "without",
			float64(plain.size)).ratioAtMost(0.75)), nil
}

// compareFanout lets the loop and the daemon take turns, so a busier machine affects both, and compares the medians.
func (r *rig) compareFanout(ctx context.Context, what string, l load) (row, error) {
	size := 0
	l.messages /= rounds
	ours, floor, err := r.inTurns(ctx, l, rounds,
		func(round int, server *part, theirs listeners, d *daemon, mine listeners) (ours, floor float64, err error) {
			used, err := cpuOf(server.cmd.Process.Pid, func() error {
				_, err := theirs.serveRound(ctx, server, round*l.deliveryCount())
				return err
			})
			if err != nil {
				return 0, 0, err
			}
			one, err := d.deliverRound(ctx, l, round, mine)
			size = one.size
			return one.cost, l.perDelivery(used), err
		})
	if err != nil {
		return row{}, err
	}
	fmt.Fprintf(os.Stderr,
		"%s: frames of %d bytes, the bare loop's of %d; rounds of %.2f us, and of the loop %.2f us\n", what, size,
		len(event)+4, ours, floor)
	return newRow(what, medianOf(ours), "us CPU/delivery", "one write each", medianOf(floor)), nil
}

const (
	// rounds is the number of turns. A short pause of the machine affects one round, and the median ignores it.
	rounds = 5
	// spareRounds is the maximum number of additional rounds if some do not count.
	spareRounds = 15
)

// measured is one round of the daemon, and one of the bare loop.
type measured func(n int, server *part, theirs listeners, d *daemon, mine listeners) (ours, floor float64, err error)

// inTurns connects clients to the bare loop and to a daemon, and runs rounds, counted from one. The calmest rounds
// count.
func (r *rig) inTurns(
	ctx context.Context, l load, count int, round measured, more ...string,
) (ours, floor []float64, err error) {
	err = r.withClients(ctx, "", l, func(d *daemon, mine listeners) error {
		return withFloor(ctx, l, len(event)+4, func(server *part, theirs listeners) error {
			turns, err := runCalmRounds(count, spareRounds, func(n int) (turn [2]float64, err error) {
				turn[0], turn[1], err = round(n, server, theirs, d, mine)
				return turn, err
			})
			for _, t := range turns {
				ours, floor = append(ours, t[0]), append(floor, t[1])
			}
			return err
		}, more...)
	}, more...)
	return ours, floor, err
}

// delivered is the cost of a delivery in CPU microseconds, and the size of a frame.
type delivered struct {
	cost float64
	size int
}

// compareVariant returns the medians of a daemon with additional configuration and client flags, and of one without,
// measured just before. Both at once would share a log.
func (r *rig) compareVariant(
	ctx context.Context, l load, more string, flags ...string,
) (with, without delivered, err error) {
	l.messages /= rounds
	measure := func(more string, flags ...string) (one delivered, err error) {
		err = r.withClients(ctx, more, l, func(d *daemon, clients listeners) error {
			var costs []float64
			for round := 1; round <= rounds; round++ {
				if one, err = d.deliverRound(ctx, l, round, clients); err != nil {
					return err
				}
				costs = append(costs, one.cost)
			}
			one.cost = medianOf(costs)
			return nil
		}, flags...)
		return one, err
	}
	if without, err = measure(""); err == nil {
		with, err = measure(more, flags...)
	}
	return with, without, err
}

// deliverRound publishes one round, waits until all clients have everything up to it, and returns its cost.
func (d *daemon) deliverRound(ctx context.Context, l load, round int, clients listeners) (delivered, error) {
	var bytes int
	used, err := cpuOf(d.cmd.Process.Pid, func() error {
		err := d.publishPaced(l)
		if err == nil {
			bytes, err = clients.waitFrames(ctx, round*l.deliveryCount())
		}
		return err
	})
	return delivered{cost: l.perDelivery(used), size: bytes / (round * l.deliveryCount())}, err
}

// withClients runs a daemon to which clients are connected.
func (r *rig) withClients(
	ctx context.Context, more string, l load, measure func(*daemon, listeners) error, flags ...string,
) error {
	return r.withDaemon(ctx, more, func(d *daemon) error {
		clients, err := startClients(ctx, d.listen, l.clients, flags...)
		if err != nil {
			return err
		}
		defer clients.stop()
		return measure(d, clients)
	})
}

func (d *daemon) publishPaced(l load) error {
	publisher, err := dialHTTP(d.listen)
	if err != nil {
		return err
	}
	defer publisher.close()
	return runPaced(l.messages, l.every,
		func(due time.Time) error { return publisher.postRequest(stampedRequest(due)) })
}

// cpuOf returns the CPU time of a process while do runs.
func cpuOf(pid int, do func() error) (time.Duration, error) {
	before, err := cpuTime(pid)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := cpuTime(pid)
	return after - before, err
}

// withFloor connects clients to the bare loop, which waits for "go".
func withFloor(ctx context.Context, l load, size int, measure func(*part, listeners) error, more ...string) error {
	server, err := startRole(ctx, roleFloor)
	if err != nil {
		return err
	}
	defer server.stop()
	address, err := server.readLine()
	if err != nil {
		return err
	}
	if err := server.sendLine(l.clients, l.messages, l.every.Nanoseconds(), size); err != nil {
		return err
	}
	clients, err := startClients(ctx, address, l.clients, append(more, "-plain")...)
	if err != nil {
		return err
	}
	defer clients.stop()
	if _, err := server.readLine(); err != nil { // connected
		return err
	}
	return measure(server, clients)
}

// listeners is the process that holds the clients.
type listeners struct{ *part }

func startClients(ctx context.Context, address string, n int, more ...string) (listeners, error) {
	p, err := startRole(ctx, roleClients, append([]string{"-address", address, "-n", strconv.Itoa(n)}, more...)...)
	if err != nil {
		return listeners{}, err
	}
	if _, err := p.readLine(); err != nil {
		p.stop()
		return listeners{}, err
	}
	return listeners{p}, nil
}

// waitFrames waits until the given number of frames has arrived in total, and returns their bytes.
func (l listeners) waitFrames(ctx context.Context, want int) (bytes int, err error) {
	err = retryUntil(ctx, 20*time.Second, func() error {
		answer, err := l.sendAndRead("report")
		if err != nil {
			return err
		}
		var frames int
		if _, err := fmt.Sscan(answer, &frames, &bytes); err != nil {
			return err
		}
		if frames != want {
			return fmt.Errorf("%d of %d deliveries have arrived", frames, want)
		}
		return nil
	})
	return bytes, err
}

// serveRound lets the loop write once more, and waits until the given number of frames has arrived in total.
func (l listeners) serveRound(ctx context.Context, server *part, want int) (bytes int, err error) {
	if _, err := server.sendAndRead("go"); err != nil {
		return 0, err
	}
	return l.waitFrames(ctx, want)
}
