package main

import (
	"context"
	"fmt"
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

// measureCrowd connects 10,000 clients in 1,000 hubs, weighs the first half of them while they are idle, and sends
// notifications to one hub.
func measureCrowd(ctx context.Context, r *rig) ([]row, error) {
	const quiet = "websocket: {ping_interval: 1h}" // pings are no part of what a notification costs
	alone := load{clients: 2 * crowdHalf / crowdHubs, messages: crowdMessages, every: crowdEvery}
	own, _, err := r.fanoutCost(ctx, quiet, alone)
	if err != nil {
		return nil, fmt.Errorf("ten clients alone: %w", err)
	}
	bare, err := bareCrowd(ctx)
	if err != nil {
		return nil, fmt.Errorf("bare connections: %w", err)
	}
	var rows []row
	err = r.withDaemon(ctx, quiet, func(d *daemon) error {
		pid := d.cmd.Process.Pid
		before, err := residentMiB(pid)
		if err != nil {
			return err
		}
		began := time.Now()
		first, err := startClients(ctx, d.listen, crowdHalf, "-hubs", strconv.Itoa(crowdHubs), "-often", "1s")
		if err != nil {
			return err
		}
		defer first.stop()
		took := time.Since(began)
		if err := pause(ctx, idleWait); err != nil {
			return err
		}
		after, err := residentMiB(pid)
		if err != nil {
			return err
		}
		began = time.Now()
		second, err := startClients(ctx, d.listen, crowdHalf, "-hubs", strconv.Itoa(crowdHubs), "-often", "1s")
		if err != nil {
			return err
		}
		defer second.stop()
		took += time.Since(began)
		used, err := cpuOf(pid, func() error {
			if err := d.publishPaced(alone); err != nil {
				return err
			}
			for _, half := range []listeners{first, second} {
				if _, err := half.arrived(ctx, alone.deliveries()/2); err != nil {
					return err
				}
			}
			return nil
		})
		rows = []row{
			newRow("5,000 idle clients, resident each", (after-before)*1024/crowdHalf, "KiB", "a bare Go server", bare.weight).atMost(7),
			newRow("10,000 clients connect, with a token each", took.Seconds(), "s", "10,000 TCP connections", bare.took).atMost(5),
			newRow("10 clients of 10,000 in 1,000 hubs", alone.perDelivery(used), "us CPU/delivery", "10 clients alone", own).ratioAtMost(1.25),
		}
		return err
	})
	return rows, err
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
