package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hubrelay/hubrelay/internal/embeddedredis"
	"github.com/hubrelay/hubrelay/plugins/directory"
	"github.com/hubrelay/hubrelay/relay/client"
)

// serverNames are the directories of the servers.
var serverNames = []string{"server-1", "server-2", "server-3", "server-4", "server-5"}

// inventoryFormat is the inventory file. Its arguments are the directories of the servers.
const inventoryFormat = `clusters:
  production:
    servers:
      server-1: {path: %[1]q}
      server-2: {path: %[2]q}
      server-3: {path: %[3]q}
  staging:
    servers:
      server-4: {path: %[4]q}
      server-5: {path: %[5]q}
containers:
  shop: {hub_id: demo, account_id: acme, environment_id: live, stateful: true,
    instances: {shop-1: {server_id: server-1}, shop-2: {server_id: server-2}}}
  worker: {hub_id: demo, account_id: acme, environment_id: live, stateful: true,
    instances: {worker-1: {server_id: server-3}}}
  preview: {hub_id: demo, account_id: acme, environment_id: test, stateful: true,
    instances: {preview-1: {server_id: server-4}}}
`

// instanceJSON is the command of each instance. It writes the time once per second.
const instanceJSON = `{
  "command": ["/bin/sh", "-c", "while sleep 1; do date >> volumes/data/times.txt; done"],
  "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}
}
`

// volumeBytes is the size of the volume of each instance.
const volumeBytes = 4 << 20

// moves are the instances that the demo migrates between their servers. The instances of the shop are for the user.
var moves = []struct {
	container, instance string
	servers             []string
}{
	{"worker", "worker-1", []string{"server-1", "server-2", "server-3"}},
	{"preview", "preview-1", []string{"server-5", "server-4"}},
}

const (
	firstMoveDelay = 5 * time.Second
	moveInterval   = 20 * time.Second
	// stopTimeout limits the time to stop all instances.
	stopTimeout = 20 * time.Second
)

func (d *demo) serversDir() string { return filepath.Join(d.dir, "servers") }

// makeServers creates the directories of the servers with their instances, and the inventory.
func (d *demo) makeServers() error {
	paths := make([]any, len(serverNames))
	for i, server := range serverNames {
		path := filepath.Join(d.serversDir(), server)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
		paths[i] = path
	}
	if err := os.WriteFile(filepath.Join(d.dir, "inventory.yaml"), fmt.Appendf(nil, inventoryFormat, paths...),
		0o600); err != nil {
		return err
	}
	for _, at := range []string{"server-1/shop-1", "server-2/shop-2", "server-3/worker-1", "server-4/preview-1"} {
		home := filepath.Join(d.serversDir(), at)
		if err := os.MkdirAll(filepath.Join(home, "volumes", "data"), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(home, "volumes", "data", "ballast"), make([]byte, volumeBytes),
			0o600); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(home, "instance.json"), []byte(instanceJSON), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp stops processes that a killed demo left in the directory, and removes its data.
func (d *demo) cleanUp(ctx context.Context, log *slog.Logger) error {
	d.endServers(log)
	data := filepath.Join(d.dir, "data")
	if _, err := os.Stat(data); err != nil {
		return nil // nothing to clean up, or the start of Redis reports the error
	}
	server, err := embeddedredis.Start(ctx, embeddedredis.Options{DataDir: data})
	if err == nil {
		err = server.Close(ctx)
	}
	if err != nil && !errors.Is(err, embeddedredis.ErrNoBinary) {
		return fmt.Errorf("stop redis-server of an earlier demo: %w", err)
	}
	return os.RemoveAll(data)
}

// endServers stops and removes the instances. If the directory of its instance is missing, an agent stops, and no new
// agent starts.
func (d *demo) endServers(log *slog.Logger) {
	ended, err := os.MkdirTemp(d.dir, "ended-")
	if err == nil {
		err = os.Rename(d.serversDir(), filepath.Join(ended, "servers"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	homes, e := filepath.Glob(filepath.Join(ended, "servers", "*", "*"))
	err = cmp.Or(err, e)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(stopTimeout); len(homes) > 0 && err == nil; {
		running, e := directory.AgentRunning(homes[0])
		switch {
		case e != nil:
			err = e
		case !running:
			homes = homes[1:]
			continue
		case time.Now().After(deadline):
			err = errors.New("an agent does not stop")
		default:
			<-tick.C
		}
	}
	if err = cmp.Or(err, os.RemoveAll(ended)); err != nil {
		log.Warn("instances of the demo were not removed", "path", ended, "error", err)
	}
}

// migrateLoop periodically migrates an instance.
func (d *demo) migrateLoop(ctx context.Context) {
	timer := time.NewTimer(firstMoveDelay)
	defer timer.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		one := moves[n%len(moves)]
		to := one.servers[n/len(moves)%len(one.servers)]
		d.printLinef("%s %s %s to %s", d.formatNow(), d.paint.Yellow("migrate    ▶"), d.paint.Bold(one.instance),
			d.paint.Bold(to))
		_, err := d.client.Migrate(ctx, client.Migration{
			Container: one.container, Instance: one.instance,
			Destination: to, CopyVolumes: true,
		})
		if err != nil && ctx.Err() == nil {
			d.printLinef("%s %s %v", d.formatNow(), d.paint.Red("rejected   ▶"), err)
		}
		timer.Reset(moveInterval)
	}
}
