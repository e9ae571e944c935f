package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

const (
	burstMessages = 5000
	burstFloor    = 500 // messages of the bare loop, which needs as long for them

	crowdIdle     = 5000
	crowdAll      = 10_000
	crowdHubs     = 1000
	crowdMessages = 1000
	crowdEvery    = 5 * time.Millisecond
	crowdOften    = "1s"                             // how often the sockets are emptied, of ten clients as of 10,000
	crowdQuiet    = "websocket: {ping_interval: 1h}" // pings do not count as cost of a notification

	// Idle clients are weighed while they answer pings: their readers have to wake up for that.
	crowdPinged = "websocket: {ping_interval: 5s}"
	crowdPings  = 3 // per client; the last one follows after the memory of the wave was released
)

// measureBurst publishes thousands of messages at once, and waits until all clients have all of them.
func measureBurst(ctx context.Context, r *rig) ([]row, error) {
	l := load{clients: fanClients, messages: burstFloor, every: time.Microsecond}
	var floor, rate float64
	err := withFloor(ctx, l, len(event)+4, func(server *part, clients listeners) error {
		var err error
		floor, err = perSecond(l.deliveryCount(), func() error {
			if _, err := server.sendAndRead("go"); err != nil {
				return err
			}
			_, err := clients.waitFrames(ctx, l.deliveryCount())
			return err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("one write each: %w", err)
	}
	err = r.withDaemon(ctx, "", func(d *daemon) error {
		clients, err := startClients(ctx, d.listen, fanClients)
		if err != nil {
			return err
		}
		defer clients.stop()
		rate, err = perSecond(fanClients*burstMessages, func() error {
			if err := d.publishBatches(burstMessages); err != nil {
				return err
			}
			_, err := clients.waitFrames(ctx, fanClients*burstMessages)
			return err
		})
		return err
	})
	return []row{
		newRow("burst of 5,000 messages to 500 clients", rate, "deliveries/s", "one write each",
			floor).atLeast(1_300_000),
	}, err
}

func perSecond(n int, do func() error) (float64, error) {
	began := time.Now()
	err := do()
	return float64(n) / time.Since(began).Seconds(), err
}

// measureCrowd measures the memory of 5,000 idle clients, connects 10,000 in 1,000 hubs at once, and sends
// notifications to one hub. It compares the cost with ten clients alone, before and after.
func measureCrowd(ctx context.Context, r *rig) ([]row, error) {
	few := load{clients: crowdAll / crowdHubs, messages: crowdMessages, every: crowdEvery}
	alone := func() (cost float64, err error) {
		err = r.withClients(ctx, crowdQuiet, few, func(d *daemon, clients listeners) error {
			one, err := d.deliverRound(ctx, few, 1, clients)
			cost = one.cost
			return err
		}, "-often", crowdOften)
		return cost, err
	}
	bareWeight, err := bareIdle(ctx)
	if err != nil {
		return nil, fmt.Errorf("bare connections: %w", err)
	}
	weight, err := r.idleClients(ctx)
	if err != nil {
		return nil, fmt.Errorf("idle clients: %w", err)
	}
	before, err := alone()
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	bareTook, err := bareWave(ctx)
	if err != nil {
		return nil, fmt.Errorf("bare connections: %w", err)
	}
	took, cost, err := r.connectWave(ctx, few)
	if err != nil {
		return nil, err
	}
	after, err := alone()
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	fmt.Fprintf(os.Stderr, "ten clients alone: %.1f us before and %.1f us after\n", before, after)
	return []row{
		newRow("5,000 idle clients that answer pings, resident each", weight, "KiB", "a bare Go server",
			bareWeight).atMost(7),
		newRow("10,000 clients connect at once, with a token each", took, "s", "10,000 TCP connections",
			bareTook).atMost(5),
		newRow("10 clients of 10,000 in 1,000 hubs", cost, "us CPU/delivery", "10 clients alone",
			(before+after)/2).ratioAtMost(1.25),
	}, nil
}

// idleClients returns the memory per client in KiB while all clients only answer pings.
func (r *rig) idleClients(ctx context.Context) (weight float64, err error) {
	err = r.withDaemon(ctx, crowdPinged, func(d *daemon) error {
		pid := d.cmd.Process.Pid
		empty, err := residentMiB(pid)
		if err != nil {
			return err
		}
		clients, err := startClients(ctx, d.listen, crowdIdle, "-hubs", strconv.Itoa(crowdHubs), "-often", crowdOften)
		if err != nil {
			return err
		}
		defer clients.stop()
		if err := clients.waitPinged(ctx, crowdPings); err != nil {
			return err
		}
		full, err := residentMiB(pid)
		weight = (full - empty) * 1024 / crowdIdle
		return err
	})
	return weight, err
}

// waitPinged waits until each client has got so many pings, and asks seldom: each question empties all sockets.
func (l listeners) waitPinged(ctx context.Context, times int) error {
	for {
		answer, err := l.sendAndRead("pinged")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(answer); err != nil || n >= times {
			return err
		}
		if err := sleepFor(ctx, time.Second); err != nil {
			return err
		}
	}
}

// connectWave returns the time until all clients are connected, and the cost of a delivery to one hub among them.
func (r *rig) connectWave(ctx context.Context, few load) (took, cost float64, err error) {
	err = r.withDaemon(ctx, crowdQuiet, func(d *daemon) error {
		began := time.Now()
		clients, err := startClients(ctx, d.listen, crowdAll, "-hubs", strconv.Itoa(crowdHubs), "-often", crowdOften)
		if err != nil {
			return err
		}
		defer clients.stop()
		took = time.Since(began).Seconds()
		// Wait until the work after a wave of clients is done. It is not part of the cost of a delivery.
		if err := sleepFor(ctx, 2*idleWait); err != nil {
			return err
		}
		one, err := d.deliverRound(ctx, few, 1, clients)
		cost = one.cost
		return err
	})
	return took, cost, err
}

// bareIdle returns the memory per connection of the bare loop, in KiB.
func bareIdle(ctx context.Context) (weight float64, err error) {
	empty, err := bareWeight(ctx)
	if err != nil {
		return 0, err
	}
	err = withFloor(ctx, load{clients: crowdIdle, messages: 1, every: time.Second}, 100,
		func(server *part, _ listeners) error {
			full, err := residentMiB(server.cmd.Process.Pid)
			weight = (full - empty) * 1024 / crowdIdle
			return err
		})
	return weight, err
}

// bareWave returns the time in which the same number of connections is accepted by the bare loop.
func bareWave(ctx context.Context) (took float64, err error) {
	began := time.Now()
	err = withFloor(ctx, load{clients: crowdAll, messages: 1, every: time.Second}, 100, func(*part, listeners) error {
		took = time.Since(began).Seconds()
		return nil
	})
	return took, err
}
