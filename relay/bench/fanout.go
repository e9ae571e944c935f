package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

const (
	fanClients  = 500
	fanEvery    = 5 * time.Millisecond // 200 messages a second
	fanMessages = 2000                 // so ten seconds
)

// measureFanout compares the CPU time of a delivery with that of a loop that does one write for each message and
// client. The loop runs before and after the daemon, so that a machine that gets busier weighs on both.
func measureFanout(ctx context.Context, r *rig) ([]row, error) {
	var relay, size float64
	before, err := floorCost(ctx, len(event)+4)
	if err != nil {
		return nil, fmt.Errorf("one write each: %w", err)
	}
	err = r.withDaemon(ctx, "", func(d *daemon) error {
		relay, size, err = d.fanoutCost(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	after, err := floorCost(ctx, int(size))
	if err != nil {
		return nil, fmt.Errorf("one write each: %w", err)
	}
	fmt.Fprintf(os.Stderr, "fan-out: frames of %.0f bytes, %d clients, %d messages; the bare loop took %.2f and %.2f us\n",
		size, fanClients, fanMessages, before, after)
	floor := (before + after) / 2
	return []row{
		newRow("fan-out, 500 clients, 200 messages/s", relay, "us CPU/delivery", "one write each", floor).ratioAtMost(1.3),
	}, nil
}

// fanoutCost returns the daemon's CPU microseconds for each delivery, and the size of a frame.
func (d *daemon) fanoutCost(ctx context.Context) (cost, size float64, err error) {
	clients, err := startClients(ctx, d.listen)
	if err != nil {
		return 0, 0, err
	}
	defer clients.stop()
	publisher, err := dialHTTP(d.listen)
	if err != nil {
		return 0, 0, err
	}
	defer publisher.close()
	one := request("application/json", []byte(event))
	before, err := cpuTime(d.cmd.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	if err := paced(fanMessages, fanEvery, func() error { return publisher.post(one) }); err != nil {
		return 0, 0, err
	}
	bytes, err := clients.arrived(ctx)
	if err != nil {
		return 0, 0, err
	}
	after, err := cpuTime(d.cmd.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	return perDelivery(after - before), float64(bytes) / (fanClients * fanMessages), nil
}

func perDelivery(cpu time.Duration) float64 {
	return float64(cpu) / float64(time.Microsecond) / (fanClients * fanMessages)
}

// floorCost is the same for the bare loop, with frames of that size.
func floorCost(ctx context.Context, size int) (float64, error) {
	server, err := startRole(ctx, roleFloor)
	if err != nil {
		return 0, err
	}
	defer server.stop()
	address, err := server.line()
	if err != nil {
		return 0, err
	}
	if err := server.tell(fanClients, fanMessages, fanEvery.Nanoseconds(), size); err != nil {
		return 0, err
	}
	clients, err := startClients(ctx, address, "-plain")
	if err != nil {
		return 0, err
	}
	defer clients.stop()
	if _, err := server.line(); err != nil { // connected
		return 0, err
	}
	before, err := cpuTime(server.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	if _, err := server.ask("go"); err != nil {
		return 0, err
	}
	if _, err := clients.arrived(ctx); err != nil {
		return 0, err
	}
	after, err := cpuTime(server.cmd.Process.Pid)
	return perDelivery(after - before), err
}

// listeners is the process that holds the clients.
type listeners struct{ *part }

func startClients(ctx context.Context, address string, more ...string) (listeners, error) {
	p, err := startRole(ctx, roleClients, append([]string{"-address", address, "-n", strconv.Itoa(fanClients)}, more...)...)
	if err != nil {
		return listeners{}, err
	}
	if _, err := p.line(); err != nil {
		p.stop()
		return listeners{}, err
	}
	return listeners{p}, nil
}

// arrived waits until every message has come to every client, and returns their bytes.
func (l listeners) arrived(ctx context.Context) (bytes int, err error) {
	err = until(ctx, 10*time.Second, func() error {
		answer, err := l.ask("report")
		if err != nil {
			return err
		}
		var frames int
		if _, err := fmt.Sscan(answer, &frames, &bytes); err != nil {
			return err
		}
		if frames != fanClients*fanMessages {
			return fmt.Errorf("%d of %d deliveries have arrived", frames, fanClients*fanMessages)
		}
		return nil
	})
	return bytes, err
}
