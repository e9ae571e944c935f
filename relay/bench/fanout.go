package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

const fanClients = 500

// load describes the number of clients, and the number and interval of messages.
type load struct {
	clients, messages int
	interval          time.Duration
}

func (l load) deliveryCount() int { return l.clients * l.messages }

// costPerDelivery returns CPU microseconds per delivery.
func (l load) costPerDelivery(cpu time.Duration) float64 {
	return float64(cpu) / float64(time.Microsecond) / float64(l.deliveryCount())
}

// measureFanout compares the CPU time per delivery with that of a loop that does one write per message and client.
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
	gathered, plain, err := r.compareConfig(ctx, often, "websocket: {gather: 20ms}")
	if err != nil {
		return nil, err
	}
	rows = append(rows,
		newRow("the same, websocket.gather 20ms", gathered.cost, few.Unit, "without", plain.cost).ratioAtMost(0.8))
	compressed, plain, err := r.compareConfig(ctx, often, "websocket: {compression: {enabled: true}}", "-deflate")
	if err != nil {
		return nil, err
	}
	return append(rows,
		newRow("the same, websocket.compression", compressed.cost, few.Unit, "without", plain.cost).ratioAtMost(1.1),
		newRow("the same, bytes on the wire", float64(compressed.size), "bytes/delivery",
			"without", float64(plain.size)).ratioAtMost(0.75)), nil
}

// compareFanout alternates between the loop and the daemon, so a busy machine affects both, and compares the medians
// of the rounds.
func (r *rig) compareFanout(ctx context.Context, what string, l load) (row, error) {
	size := 0
	l.messages /= rounds
	ours, floor, err := r.runAlternately(ctx, l, rounds, func(n int, s sides) (ours, floor float64, err error) {
		used, err := measureCPU(s.server.cmd.Process.Pid, func() error {
			_, err := s.theirs.serveAndWait(ctx, s.server, n*l.deliveryCount())
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		one, err := s.daemon.runRound(ctx, l, n, s.mine)
		size = one.size
		return one.cost, l.costPerDelivery(used), err
	})
	if err != nil {
		return row{}, err
	}
	fmt.Fprintf(os.Stderr, "%s: frames of %d bytes, of the bare loop %d; rounds of %.2f us, of the loop %.2f us\n",
		what, size, len(event)+4, ours, floor)
	return newRow(what, median(ours), "us CPU/delivery", "one write each", median(floor)), nil
}

const (
	// rounds is the number of rounds. If the machine stalls in one round, the median ignores it.
	rounds = 5
	// spareRounds is the maximum number of additional rounds to replace rounds that do not count.
	spareRounds = 15
)

// alternatingRound runs one round of the daemon and one of the bare loop.
type alternatingRound func(n int, s sides) (ours, floor float64, err error)

// sides are the bare loop and the daemon, with their clients.
type sides struct {
	server *part
	theirs listeners
	daemon *daemon
	mine   listeners
}

// runAlternately connects clients to the bare loop and to a daemon, and runs the rounds, counted from one. It returns
// the calmest.
func (r *rig) runAlternately(
	ctx context.Context, l load, count int, round alternatingRound, more ...string,
) (ours, floor []float64, err error) {
	err = r.runWithClients(ctx, "", l, func(d *daemon, mine listeners) error {
		return runWithFloor(ctx, l, len(event)+4, func(server *part, theirs listeners) error {
			turns, err := runCalmRounds(count, spareRounds, func(n int) (turn [2]float64, err error) {
				turn[0], turn[1], err = round(n, sides{server, theirs, d, mine})
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

// deliveryCost is the CPU microseconds per delivery of a daemon, and the size of a frame.
type deliveryCost struct {
	cost float64
	size int
}

// compareConfig returns the medians of a daemon with additional configuration, whose clients have flags, and of one
// without, directly before. They do not run concurrently, because they would share a log.
func (r *rig) compareConfig(
	ctx context.Context, l load, more string, flags ...string,
) (with, without deliveryCost, err error) {
	l.messages /= rounds
	measure := func(more string, flags ...string) (one deliveryCost, err error) {
		err = r.runWithClients(ctx, more, l, func(d *daemon, clients listeners) error {
			var costs []float64
			for round := 1; round <= rounds; round++ {
				if one, err = d.runRound(ctx, l, round, clients); err != nil {
					return err
				}
				costs = append(costs, one.cost)
			}
			one.cost = median(costs)
			return nil
		}, flags...)
		return one, err
	}
	if without, err = measure(""); err == nil {
		with, err = measure(more, flags...)
	}
	return with, without, err
}

// runRound publishes, waits until all clients have the messages of this and all previous rounds, and returns the cost.
func (d *daemon) runRound(ctx context.Context, l load, round int, clients listeners) (deliveryCost, error) {
	var bytes int
	used, err := measureCPU(d.cmd.Process.Pid, func() error {
		err := d.publishPaced(l)
		if err == nil {
			bytes, err = clients.waitForFrames(ctx, round*l.deliveryCount())
		}
		return err
	})
	return deliveryCost{cost: l.costPerDelivery(used), size: bytes / (round * l.deliveryCount())}, err
}

// runWithClients runs a measurement with a daemon and connected clients.
func (r *rig) runWithClients(
	ctx context.Context, more string, l load, measure func(*daemon, listeners) error, flags ...string,
) error {
	return r.runWithDaemon(ctx, more, func(d *daemon) error {
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
	return runPaced(l.messages, l.interval,
		func(due time.Time) error { return publisher.postRequest(newStampedRequest(due)) })
}

// runWithFloor connects clients to the bare loop, which waits for "go".
func runWithFloor(ctx context.Context, l load, size int, measure func(*part, listeners) error, more ...string) error {
	server, err := startRole(ctx, roleFloor)
	if err != nil {
		return err
	}
	defer server.stop()
	address, err := server.readLine()
	if err != nil {
		return err
	}
	if err := server.sendLine(l.clients, l.messages, l.interval.Nanoseconds(), size); err != nil {
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

// listeners is the process with the clients.
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

// waitForFrames waits until the clients have received that many frames in total, and returns their bytes.
func (l listeners) waitForFrames(ctx context.Context, want int) (bytes int, err error) {
	err = waitUntil(ctx, 20*time.Second, func() error {
		response, err := l.request("report")
		if err != nil {
			return err
		}
		var frames int
		if _, err := fmt.Sscan(response, &frames, &bytes); err != nil {
			return err
		}
		if frames != want {
			return fmt.Errorf("%d of %d deliveries have arrived", frames, want)
		}
		return nil
	})
	return bytes, err
}

// serveAndWait starts a round of the bare loop and waits until the clients have received that many frames in total.
func (l listeners) serveAndWait(ctx context.Context, server *part, want int) (bytes int, err error) {
	if _, err := server.request("go"); err != nil {
		return 0, err
	}
	return l.waitForFrames(ctx, want)
}
