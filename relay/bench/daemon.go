package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	benchKey = "a-key-for-the-bench-on-loopback-only"
	benchHub = "5f0c8a7e9d3b2a1c4e6f8a90"
	path     = "/v1/hubs/current/notifications"
)

// event is the notification that all measurements publish and store. It has a typical size.
const event = `{"topic":"container.instance.state.changed",` +
	`"object":{"id":"5f0c8a7e9d3b2a1c4e6f8a92","state":"running","error":""},` +
	`"context":{"hub_id":"5f0c8a7e9d3b2a1c4e6f8a90","account_id":"5f0c8a7e9d3b2a1c4e6f8a91",` +
	`"environments":["5f0c8a7e9d3b2a1c4e6f8a93"],` +
	`"dns_zones":[],"clusters":["production"],"containers":["5f0c8a7e9d3b2a1c4e6f8a94"]},"flags":null}`

// daemon is a hubrelay process that uses the Redis of the bench.
type daemon struct {
	listen, health string
	operator       *http.Client // for the admin socket
	file           string       // configuration
	started        time.Time
	log            bytes.Buffer
	cmd            *exec.Cmd
	done           chan struct{}
}

// startDaemon starts a daemon with additional lines of configuration.
func (r *rig) startDaemon(ctx context.Context, more string) (*daemon, error) {
	return r.startDaemonAs(ctx, "hubrelay.yaml", "hubrelay", more)
}

// startDaemonAs starts a daemon with the given name of the configuration file and prefix of its Redis keys.
func (r *rig) startDaemonAs(ctx context.Context, name, prefix, more string) (*daemon, error) {
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	file, data := filepath.Join(r.dir, name), filepath.Join(r.dir, prefix)
	err = writeFile(file, fmt.Sprintf(`
server: {listen: %q}
health: {listen: %q}
redis: {url: %q, prefix: %q, data_dir: %q}
auth:
  keys:
    - {name: bench, key: %q, account_id: "*", hubs: ["*"],
       capabilities: [notifications-publish, containers-instances-migrate]}
quotas: # counted, but never reached
  key: {notifications: 100000000, bytes: 64GiB}
  account: {notifications: 100000000, bytes: 64GiB}
  requests: {per_second: 100000000}
%s
`, listen, health, r.redis.redisURL(), prefix, data, benchKey, more))
	if err != nil {
		return nil, err
	}
	d := &daemon{
		listen: listen, health: health, operator: socketClient(filepath.Join(data, "admin.sock")),
		file: file, done: make(chan struct{}),
	}
	d.cmd = exec.CommandContext(ctx, r.daemon, "serve", "-c", file)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.Env = append(os.Environ(), r.env...)
	d.started = time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

// socketClient returns a client that sends all requests to a Unix socket.
func socketClient(path string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: dial}}
}

// waitReady waits for /readyz and returns the time from the start of the daemon until it was ready.
func (d *daemon) waitReady(ctx context.Context) (time.Duration, error) {
	err := waitUntil(ctx, 10*time.Second, func() error {
		select {
		case <-d.done:
			return fmt.Errorf("the daemon ended: %s", d.log.String())
		default:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.health+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New("readyz: " + resp.Status)
		}
		return nil
	})
	return time.Since(d.started), err
}

// stop terminates the daemon and waits for at most ten seconds.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// runWithDaemon runs a measurement with a ready daemon and an empty Redis.
func (r *rig) runWithDaemon(ctx context.Context, more string, measure func(*daemon) error) error {
	if err := r.redis.flush(); err != nil {
		return err
	}
	d, err := r.startDaemon(ctx, more)
	if err != nil {
		return err
	}
	defer d.stop()
	if _, err := d.waitReady(ctx); err != nil {
		return err
	}
	if err := measure(d); err != nil {
		d.stop() // the log is complete
		return fmt.Errorf("%w; the daemon logged:\n%s", err, d.log.String())
	}
	return nil
}
