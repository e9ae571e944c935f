package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	relayclient "github.com/hubrelay/hubrelay/relay/client"
)

// sourceCount is the number of notifications that are waiting upstream.
const sourceCount = 100_000

// measureSource lets a relay copy the notifications that its upstream, on the same Redis with another prefix, stored
// while the relay was stopped. The baseline is a client that only reads them.
func measureSource(ctx context.Context, r *rig) ([]row, error) {
	var taken, read float64
	err := r.runWithDaemon(ctx, "", func(up *daemon) error {
		from, err := up.cursorNow()
		if err != nil {
			return err
		}
		section := fmt.Sprintf("sources: {up: {type: hub, url: %q, key: %q, hub_id: %q}}",
			"http://"+up.listen, benchKey, benchHub)
		down := func(wait func(d *daemon) error) error {
			d, err := r.startDaemonAs(ctx, "behind.yaml", "behind", section)
			if err != nil {
				return err
			}
			defer d.stop()
			if _, err := d.waitReady(ctx); err != nil {
				return err
			}
			return wait(d)
		}
		if err := down(func(d *daemon) error { return d.waitForSource(ctx, "connected", 0) }); err != nil {
			return err
		}
		if err := up.publishBatches(sourceCount); err != nil {
			return err
		}
		if read, err = up.readFrom(ctx, from, sourceCount); err != nil {
			return err
		}
		return down(func(d *daemon) error {
			startedAt := time.Now()
			err := d.waitForSource(ctx, "connected", sourceCount)
			taken = sourceCount / time.Since(startedAt).Seconds()
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	copied := newRow("taken over from an upstream", taken, "notifications/s", "a client that only reads", read)
	return []row{copied.atLeast(20_000)}, nil
}

// waitForSource waits until the daemon's source has the state and has stored n notifications.
func (d *daemon) waitForSource(ctx context.Context, state string, n int) error {
	return waitUntil(ctx, time.Minute, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/sources", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := d.operator.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		var response struct {
			Data []struct {
				State, Reason string
				Resumes       bool
				Stored        int
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&response); err != nil {
			return err
		}
		if len(response.Data) == 0 {
			return errors.New("there is no source")
		}
		if s := response.Data[0]; s.State != state || !s.Resumes || s.Stored < n {
			return fmt.Errorf("the source is %+v: %s", s, d.log.String())
		}
		return nil
	})
}

// readFrom reads n notifications after a cursor and returns their rate per second.
func (d *daemon) readFrom(ctx context.Context, cursor string, n int) (float64, error) {
	c := &relayclient.Client{URL: "http://" + d.listen, Key: benchKey, Hub: benchHub}
	startedAt, count := time.Now(), 0
	for _, err := range c.Listen(ctx, relayclient.ListenOptions{After: cursor}) {
		if err != nil {
			return 0, err
		}
		if count++; count == n {
			return float64(n) / time.Since(startedAt).Seconds(), nil
		}
	}
	return 0, errors.New("the stream ended early")
}
