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
	burstFloor    = 500 // messages of the bare loop, which take the same time

	crowdIdle          = 5000
	crowdAll           = 10_000
	crowdHubs          = 1000
	crowdMessages      = 1000
	crowdInterval      = 5 * time.Millisecond
	crowdDrainInterval = "1s"                             // the same for ten clients and for 10,000
	crowdNoPings       = "websocket: {ping_interval: 1h}" // pings are not part of the cost of a notification

	// Idle clients respond to pings. The memory then includes their readers.
	crowdPingConfig = "websocket: {ping_interval: 5s}"
	crowdPings      = 3 // per client, the last of them after the memory of connecting was released
)

// measureBurst publishes thousands of messages at once and waits until all clients have all of them.
func measureBurst(ctx context.Context, r *rig) ([]row, error) {
	l := load{clients: fanClients, messages: burstFloor, interval: time.Microsecond}
	var floor, rate float64
	err := runWithFloor(ctx, l, len(event)+4, func(server *part, clients listeners) error {
		var err error
		floor, err = measureRate(l.deliveryCount(), func() error {
			if _, err := server.request("go"); err != nil {
				return err
			}
			_, err := clients.waitForFrames(ctx, l.deliveryCount())
			return err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("one write each: %w", err)
	}
	err = r.runWithDaemon(ctx, "", func(d *daemon) error {
		clients, err := startClients(ctx, d.listen, fanClients)
		if err != nil {
			return err
		}
		defer clients.stop()
		rate, err = measureRate(fanClients*burstMessages, func() error {
			if err := d.publishBatches(burstMessages); err != nil {
				return err
			}
			_, err := clients.waitForFrames(ctx, fanClients*burstMessages)
			return err
		})
		return err
	})
	burst := newRow("burst of 5,000 messages to 500 clients", rate, "deliveries/s", "one write each", floor)
	return []row{burst.atLeast(1_300_000)}, err
}

// measureCrowd measures the memory of 5,000 idle clients, connects 10,000 clients in 1,000 hubs at once, and sends
// notifications to one of these hubs. Before and after, it does the same with only ten clients.
func measureCrowd(ctx context.Context, r *rig) ([]row, error) {
	few := load{clients: crowdAll / crowdHubs, messages: crowdMessages, interval: crowdInterval}
	alone := func() (cost float64, err error) {
		err = r.runWithClients(ctx, crowdNoPings, few, func(d *daemon, clients listeners) error {
			one, err := d.runRound(ctx, few, 1, clients)
			cost = one.cost
			return err
		}, "-often", crowdDrainInterval)
		return cost, err
	}
	bareWeight, err := weighBareConnections(ctx)
	if err != nil {
		return nil, fmt.Errorf("bare connections: %w", err)
	}
	weight, err := r.weighIdleClients(ctx)
	if err != nil {
		return nil, fmt.Errorf("idle clients: %w", err)
	}
	before, err := alone()
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	bareTook, err := timeBareConnections(ctx)
	if err != nil {
		return nil, fmt.Errorf("bare connections: %w", err)
	}
	took, cost, err := r.connectCrowd(ctx, few)
	if err != nil {
		return nil, err
	}
	after, err := alone()
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	fmt.Fprintf(os.Stderr, "ten clients alone: %.1f us before and %.1f us after\n", before, after)
	return []row{
		newRow("5,000 idle clients that answer pings, resident each", weight, "KiB",
			"a bare Go server", bareWeight).atMost(7),
		newRow("10,000 clients connect at once, with a token each", took, "s",
			"10,000 TCP connections", bareTook).atMost(5),
		newRow("10 clients of 10,000 in 1,000 hubs", cost, "us CPU/delivery",
			"10 clients alone", (before+after)/2).ratioAtMost(1.25),
	}, nil
}

// weighIdleClients returns the memory per client in KiB while all clients only respond to pings.
func (r *rig) weighIdleClients(ctx context.Context) (weight float64, err error) {
	err = r.runWithDaemon(ctx, crowdPingConfig, func(d *daemon) error {
		pid := d.cmd.Process.Pid
		empty, err := residentMiB(pid)
		if err != nil {
			return err
		}
		clients, err := startClients(ctx, d.listen, crowdIdle,
			"-hubs", strconv.Itoa(crowdHubs), "-often", crowdDrainInterval)
		if err != nil {
			return err
		}
		defer clients.stop()
		if err := clients.waitForPings(ctx, crowdPings); err != nil {
			return err
		}
		full, err := residentMiB(pid)
		weight = (full - empty) * 1024 / crowdIdle
		return err
	})
	return weight, err
}

// waitForPings waits until each client has received that many pings. It polls rarely, because each request drains all
// sockets.
func (l listeners) waitForPings(ctx context.Context, times int) error {
	for {
		response, err := l.request("pinged")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(response); err != nil || n >= times {
			return err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// connectCrowd returns the seconds until all clients were connected, and the cost of a delivery to one hub among them.
func (r *rig) connectCrowd(ctx context.Context, few load) (took, cost float64, err error) {
	err = r.runWithDaemon(ctx, crowdNoPings, func(d *daemon) error {
		startedAt := time.Now()
		clients, err := startClients(ctx, d.listen, crowdAll,
			"-hubs", strconv.Itoa(crowdHubs), "-often", crowdDrainInterval)
		if err != nil {
			return err
		}
		defer clients.stop()
		took = time.Since(startedAt).Seconds()
		// Work that follows connecting is not part of the cost of a delivery.
		if err := sleep(ctx, 2*idleWait); err != nil {
			return err
		}
		one, err := d.runRound(ctx, few, 1, clients)
		cost = one.cost
		return err
	})
	return took, cost, err
}

// weighBareConnections returns the memory per unused connection in KiB.
func weighBareConnections(ctx context.Context) (weight float64, err error) {
	empty, err := weighBareServer(ctx)
	if err != nil {
		return 0, err
	}
	err = runWithFloor(ctx, load{clients: crowdIdle, messages: 1, interval: time.Second}, 100,
		func(server *part, _ listeners) error {
			full, err := residentMiB(server.cmd.Process.Pid)
			weight = (full - empty) * 1024 / crowdIdle
			return err
		})
	return weight, err
}

// timeBareConnections returns the seconds to open as many connections as connectCrowd.
func timeBareConnections(ctx context.Context) (took float64, err error) {
	startedAt := time.Now()
	err = runWithFloor(ctx, load{clients: crowdAll, messages: 1, interval: time.Second}, 100,
		func(*part, listeners) error {
			took = time.Since(startedAt).Seconds()
			return nil
		})
	return took, err
}
