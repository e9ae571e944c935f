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

	crowdHalf     = 5000
	crowdHubs     = 1000
	crowdMessages = 1000
	crowdEvery    = 5 * time.Millisecond
	crowdOften    = "1s"                             // how often the sockets are emptied, of ten clients as of 10,000
	crowdQuiet    = "websocket: {ping_interval: 1h}" // pings are no part of what a notification costs
)

// measureBurst publishes thousands of messages at once, and waits until all clients have all of them.
func measureBurst(ctx context.Context, r *rig) ([]row, error) {
	l := load{clients: fanClients, messages: burstFloor, every: time.Microsecond}
	var floor, rate float64
	err := withFloor(ctx, l, len(event)+4, func(server *part, clients listeners) error {
		var err error
		floor, err = perSecond(l.deliveries(), func() error {
			if _, err := server.ask("go"); err != nil {
				return err
			}
			_, err := clients.arrived(ctx, l.deliveries())
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
			_, err := clients.arrived(ctx, fanClients*burstMessages)
			return err
		})
		return err
	})
	return []row{newRow("burst of 5,000 messages to 500 clients", rate, "deliveries/s", "one write each", floor).atLeast(1_300_000)}, err
}

func perSecond(n int, do func() error) (float64, error) {
	began := time.Now()
	err := do()
	return float64(n) / time.Since(began).Seconds(), err
}

// measureCrowd connects 10,000 clients in 1,000 hubs, and sends notifications to one hub, as before and after that to one of
// ten clients that are alone.
func measureCrowd(ctx context.Context, r *rig) ([]row, error) {
	few := load{clients: 2 * crowdHalf / crowdHubs, messages: crowdMessages, every: crowdEvery}
	alone := func() (cost float64, err error) {
		err = r.withClients(ctx, crowdQuiet, few, func(d *daemon, clients listeners) error {
			one, err := d.deliver(ctx, few, 1, clients)
			cost = one.cost
			return err
		}, "-often", crowdOften)
		return cost, err
	}
	before, err := alone()
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	bare, err := bareCrowd(ctx)
	if err != nil {
		return nil, fmt.Errorf("bare connections: %w", err)
	}
	c, err := r.crowd(ctx, few)
	if err != nil {
		return nil, err
	}
	after, err := alone()
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	fmt.Fprintf(os.Stderr, "ten clients alone: %.1f us before and %.1f us after\n", before, after)
	return []row{
		newRow("5,000 idle clients, resident each", c.weight, "KiB", "a bare Go server", bare.weight).atMost(7),
		newRow("10,000 clients connect, with a token each", c.took, "s", "10,000 TCP connections", bare.took).atMost(5),
		newRow("10 clients of 10,000 in 1,000 hubs", c.cost, "us CPU/delivery", "10 clients alone", (before+after)/2).ratioAtMost(1.25),
	}, nil
}

// crowd is what a daemon's clients weigh, each while half of them are there, how long they took to connect, and what a
// delivery to one hub's costs among them.
type crowd struct{ weight, took, cost float64 }

func (r *rig) crowd(ctx context.Context, few load) (c crowd, err error) {
	err = r.withDaemon(ctx, crowdQuiet, func(d *daemon) error {
		pid := d.cmd.Process.Pid
		empty, err := residentMiB(pid)
		if err != nil {
			return err
		}
		var halves []listeners
		for range 2 {
			began := time.Now()
			half, err := startClients(ctx, d.listen, crowdHalf, "-hubs", strconv.Itoa(crowdHubs), "-often", crowdOften)
			if err != nil {
				return err
			}
			defer half.stop()
			c.took += time.Since(began).Seconds()
			halves = append(halves, half)
			// What is done once, behind a wave of clients, is no part of what they weigh or a delivery costs.
			if err := pause(ctx, idleWait); err != nil {
				return err
			}
			if c.weight > 0 {
				break
			}
			full, err := residentMiB(pid)
			if err != nil {
				return err
			}
			c.weight = (full - empty) * 1024 / crowdHalf
		}
		used, err := cpuOf(pid, func() error {
			if err := d.publishPaced(few); err != nil {
				return err
			}
			for _, half := range halves {
				if _, err := half.arrived(ctx, few.deliveries()/2); err != nil {
					return err
				}
			}
			return nil
		})
		c.cost = few.perDelivery(used)
		return err
	})
	return c, err
}

// crowdFloor is what connections cost that nothing is done with.
type crowdFloor struct{ weight, took float64 }

func bareCrowd(ctx context.Context) (crowdFloor, error) {
	empty, err := bareWeight(ctx)
	if err != nil {
		return crowdFloor{}, err
	}
	var f crowdFloor
	began := time.Now()
	err = withFloor(ctx, load{clients: crowdHalf, messages: 1, every: time.Second}, 100, func(server *part, _ listeners) error {
		f.took = 2 * time.Since(began).Seconds()
		full, err := residentMiB(server.cmd.Process.Pid)
		f.weight = (full - empty) * 1024 / crowdHalf
		return err
	})
	return f, err
}
