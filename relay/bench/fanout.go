package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

const fanClients = 500

// load is what is sent to how many clients.
type load struct {
	clients, messages int
	every             time.Duration
}

func (l load) deliveries() int { return l.clients * l.messages }

// perDelivery is CPU microseconds.
func (l load) perDelivery(cpu time.Duration) float64 {
	return float64(cpu) / float64(time.Microsecond) / float64(l.deliveries())
}

// measureFanout compares the CPU time of a delivery with that of a loop that does one write for each message and client.
func measureFanout(ctx context.Context, r *rig) ([]row, error) {
	seldom := load{fanClients, 200, 50 * time.Millisecond}
	often := load{fanClients, 2000, 5 * time.Millisecond}
	few, err := r.fanout(ctx, "fan-out, 500 clients, 20 messages/s", seldom)
	if err != nil {
		return nil, err
	}
	many, err := r.fanout(ctx, "fan-out, 500 clients, 200 messages/s", often)
	if err != nil {
		return nil, err
	}
	rows := []row{few.ratioAtMost(1.25), many.ratioAtMost(1.25)}
	gathered, plain, err := r.variant(ctx, often, "websocket: {gather: 20ms}")
	if err != nil {
		return nil, err
	}
	rows = append(rows, newRow("the same, websocket.gather 20ms", gathered.cost, few.Unit, "without", plain.cost).ratioAtMost(0.8))
	compressed, plain, err := r.variant(ctx, often, "websocket: {compression: {enabled: true}}", "-deflate")
	if err != nil {
		return nil, err
	}
	return append(rows,
		newRow("the same, websocket.compression", compressed.cost, few.Unit, "without", plain.cost).ratioAtMost(1.1),
		newRow("the same, bytes on the wire", float64(compressed.size), "bytes/delivery", "without", float64(plain.size)).ratioAtMost(0.75)), nil
}

// fanout lets the loop and the daemon take turns, so that a machine that gets busier weighs on both, and compares the
// medians of the rounds.
func (r *rig) fanout(ctx context.Context, what string, l load) (row, error) {
	size := 0
	l.messages /= rounds
	ours, floor, err := r.inTurns(ctx, l, rounds, func(round int, server *part, theirs listeners, d *daemon, mine listeners) (ours, floor float64, err error) {
		used, err := cpuOf(server.cmd.Process.Pid, func() error {
			_, err := theirs.served(ctx, server, round*l.deliveries())
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		one, err := d.deliver(ctx, l, round, mine)
		size = one.size
		return one.cost, l.perDelivery(used), err
	})
	if err != nil {
		return row{}, err
	}
	fmt.Fprintf(os.Stderr, "%s: frames of %d bytes, the bare loop's of %d; rounds of %.2f us, and of the loop %.2f us\n", what, size, len(event)+4, ours, floor)
	return newRow(what, median(ours), "us CPU/delivery", "one write each", median(floor)), nil
}

const (
	// rounds is how often the loop and the daemon take turns. A moment in which the machine stands still falls into one round,
	// and the median passes it over on both sides.
	rounds = 5
	// spareRounds is how many more there are at most where some do not count.
	spareRounds = 15
)

// measured is one round of the daemon, and one of the bare loop.
type measured func(n int, server *part, theirs listeners, d *daemon, mine listeners) (ours, floor float64, err error)

// inTurns connects clients to the bare loop and as many to a daemon, and runs the rounds, counted from one, of which the
// calmest count.
func (r *rig) inTurns(ctx context.Context, l load, count int, round measured, more ...string) (ours, floor []float64, err error) {
	err = r.withClients(ctx, "", l, func(d *daemon, mine listeners) error {
		return withFloor(ctx, l, len(event)+4, func(server *part, theirs listeners) error {
			turns, err := calmest(count, spareRounds, func(n int) (turn [2]float64, err error) {
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

// delivered is what a daemon's deliveries were: the CPU microseconds of each, and the size of a frame.
type delivered struct {
	cost float64
	size int
}

// variant returns the medians of a daemon with more in its configuration, whose clients have flags, and of one without right
// before it. Both at once would share a log.
func (r *rig) variant(ctx context.Context, l load, more string, flags ...string) (with, without delivered, err error) {
	l.messages /= rounds
	measure := func(more string, flags ...string) (one delivered, err error) {
		err = r.withClients(ctx, more, l, func(d *daemon, clients listeners) error {
			var costs []float64
			for round := 1; round <= rounds; round++ {
				if one, err = d.deliver(ctx, l, round, clients); err != nil {
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

// deliver is one round of a daemon: it publishes, waits until all clients have everything of this round and those before it,
// and says what that cost.
func (d *daemon) deliver(ctx context.Context, l load, round int, clients listeners) (delivered, error) {
	var bytes int
	used, err := cpuOf(d.cmd.Process.Pid, func() error {
		err := d.publishPaced(l)
		if err == nil {
			bytes, err = clients.arrived(ctx, round*l.deliveries())
		}
		return err
	})
	return delivered{cost: l.perDelivery(used), size: bytes / (round * l.deliveries())}, err
}

// withClients runs a daemon to which clients are connected.
func (r *rig) withClients(ctx context.Context, more string, l load, measure func(*daemon, listeners) error, flags ...string) error {
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
	return paced(l.messages, l.every, func(due time.Time) error { return publisher.post(stamped(due)) })
}

// cpuOf is what a process used while do ran.
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
	address, err := server.line()
	if err != nil {
		return err
	}
	if err := server.tell(l.clients, l.messages, l.every.Nanoseconds(), size); err != nil {
		return err
	}
	clients, err := startClients(ctx, address, l.clients, append(more, "-plain")...)
	if err != nil {
		return err
	}
	defer clients.stop()
	if _, err := server.line(); err != nil { // connected
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
	if _, err := p.line(); err != nil {
		p.stop()
		return listeners{}, err
	}
	return listeners{p}, nil
}

// arrived waits until so many frames have come in all, and returns their bytes.
func (l listeners) arrived(ctx context.Context, want int) (bytes int, err error) {
	err = until(ctx, 20*time.Second, func() error {
		answer, err := l.ask("report")
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

// served lets the loop write once more, and waits until so many frames have come in all.
func (l listeners) served(ctx context.Context, server *part, want int) (bytes int, err error) {
	if _, err := server.ask("go"); err != nil {
		return 0, err
	}
	return l.arrived(ctx, want)
}
