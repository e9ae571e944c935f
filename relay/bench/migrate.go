package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
	relayclient "github.com/hubrelay/hubrelay/relay/client"
)

const (
	moveInstances = 12_000
	moveConns     = 16
	moveRounds    = 3
	moveSteady    = 200 // requests, one every 10 ms, whose first events are measured
)

// measureMigrate requests migrations of thousands of instances, one each, while a driver that never finishes works on
// the jobs. The best round of each figure counts.
func measureMigrate(ctx context.Context, r *rig) ([]row, error) {
	more, err := r.writeInventory()
	if err != nil {
		return nil, err
	}
	rate, late, publish, publishLate, first := 0.0, 1e9, 0.0, 1e9, 1e9
	err = r.runWithDaemon(ctx, more, func(d *daemon) error {
		next := 0
		for range moveRounds {
			got, p99, err := d.postAll(moveInstances/moveRounds-moveSteady, func(int) []byte {
				return newPublishRequest("application/json", []byte(event))
			}, 0)
			if err != nil {
				return err
			}
			publish, publishLate = max(publish, got), min(publishLate, p99)
			got, p99, err = d.postAll(moveInstances/moveRounds-moveSteady, migrateRequest, next)
			if err != nil {
				return err
			}
			rate, late = max(rate, got), min(late, p99)
			next += moveInstances/moveRounds - moveSteady
			if p99, err = d.firstEvents(ctx, next); err != nil {
				return err
			}
			first = min(first, p99)
			next += moveSteady
			fmt.Fprintf(os.Stderr, "migrate: %.0f requests/s, p99 %.1f ms, first event p99 %.1f ms\n",
				rate, late, first)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	const single = "publishing one"
	return []row{
		newRow("migrations asked for, 16 at once", rate, "requests/s", single, publish).atLeast(2000),
		newRow("the same, p99 of the answer", late, "ms", single, publishLate).atMost(20),
		newRow("p99 of a job's first event on a websocket", first, "ms from the request",
			"the answer above", late).atMost(50),
	}, nil
}

// writeInventory writes an inventory with many instances and returns the configuration lines for it.
func (r *rig) writeInventory() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("clusters: {bench: {servers: {a: {}, b: {}}}}\ncontainers:\n")
	const each = 100
	for c := range moveInstances / each {
		var instances []string
		for i := range each {
			instances = append(instances, fmt.Sprintf("i%d: {server_id: a}", c*each+i))
		}
		fmt.Fprintf(&b, "  c%d: {hub_id: %q, account_id: 5f0c8a7e9d3b2a1c4e6f8a91, instances: {%s}}\n",
			c, benchHub, strings.Join(instances, ", "))
	}
	file := filepath.Join(r.dir, "inventory.yaml")
	config := fmt.Sprintf("migration: {inventory_file: %q, driver: {command: [%q], env: [%q]}}\n",
		file, self, roleVariable+"="+roleDriver)
	return config, writeFile(file, b.String())
}

func migrateRequest(n int) []byte {
	body := `{"action":"migrate","value":{"destination_server_id":"b","stateful":{"copy_volumes":true}}}`
	return newRequest(fmt.Sprintf("/v1/containers/c%d/instances/i%d/tasks", n/100, n), benchKey, "application/json",
		[]byte(body))
}

// postAll sends n requests over a few connections as fast as possible, and returns their rate and the 99th percentile
// of their times in milliseconds.
func (d *daemon) postAll(n int, compose func(int) []byte, from int) (rate, p99 float64, err error) {
	times := make([]time.Duration, n)
	var next atomic.Int64
	errs := new(failures)
	var wg sync.WaitGroup
	startedAt := time.Now()
	for range moveConns {
		wg.Go(func() {
			c, err := dialHTTP(d.listen)
			if err != nil {
				errs.add(err)
				return
			}
			defer c.close()
			for i := int(next.Add(1)) - 1; i < n && errs.isEmpty(); i = int(next.Add(1)) - 1 {
				text := compose(from + i)
				started := time.Now()
				if err := c.postRequest(text); err != nil {
					errs.add(err)
				}
				times[i] = time.Since(started)
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(startedAt).Seconds(), milliseconds(percentile(times, 99)), errs.first
}

// firstEvents requests migrations at a steady rate and returns the 99th percentile, in milliseconds, of the time
// until the first event of each job arrived on a websocket.
func (d *daemon) firstEvents(ctx context.Context, from int) (p99 float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	connected := make(chan struct{})
	var mu sync.Mutex
	sent, times := map[string]time.Time{}, make([]time.Duration, 0, moveSteady)
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		c := &relayclient.Client{URL: "http://" + d.listen, Key: benchKey, Hub: benchHub}
		options := relayclient.ListenOptions{
			Topics: []string{"job.created"}, OnConnected: func() { once.Do(func() { close(connected) }) },
		}
		for n, e := range c.Listen(ctx, options) {
			var what struct {
				Object struct {
					Instance string `json:"instance_id"`
				} `json:"object"`
			}
			if e == nil {
				e = json.Unmarshal(n.Data, &what)
			}
			if e != nil {
				err = e
				cancel()
				return
			}
			mu.Lock()
			if at, ok := sent[what.Object.Instance]; ok {
				times = append(times, time.Since(at))
			}
			enough := len(times) == moveSteady
			mu.Unlock()
			if enough {
				return
			}
		}
		err = fmt.Errorf("got %d of %d first events", len(times), moveSteady)
	})
	defer wg.Wait()
	defer cancel()
	select {
	case <-connected:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	c, dialed := dialHTTP(d.listen)
	if dialed != nil {
		return 0, dialed
	}
	defer c.close()
	i := from
	asked := runPaced(moveSteady, 10*time.Millisecond, func(time.Time) error {
		mu.Lock()
		sent[fmt.Sprintf("i%d", i)] = time.Now()
		mu.Unlock()
		i++
		return c.postRequest(migrateRequest(i - 1))
	})
	if asked != nil {
		return 0, asked
	}
	wg.Wait()
	return milliseconds(percentile(times, 99)), err
}

// failures keeps the first of several errors.
type failures struct {
	mu    sync.Mutex
	first error
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		f.first = err
	}
}

func (f *failures) isEmpty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first == nil
}

// idleDriver never finishes a migration.
type idleDriver struct{}

func playDriver() error { return sdk.ServeDriver(idleDriver{}) }

func (idleDriver) Describe(context.Context) (relay.DriverDescription, error) {
	return relay.DriverDescription{Name: "idle", Steps: []relay.MigrationStep{{ID: "wait", Caption: "Wait"}}}, nil
}

func (idleDriver) Configure(context.Context, []relay.Server) error { return nil }

func (idleDriver) Migrate(ctx context.Context, _ relay.Migration, _ func(relay.Progress)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (idleDriver) Close() error { return nil }
