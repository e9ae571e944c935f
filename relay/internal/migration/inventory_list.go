package migration

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Listing is the complete inventory, sorted by ID.
type Listing struct {
	Version    int64
	Servers    []relay.Server // with Instances
	Containers []ListedContainer
}

// ListedContainer is a container with its instances.
type ListedContainer struct {
	Container
	Instances []ListedInstance
}

// ListedInstance is an instance with its current server.
type ListedInstance struct {
	ID     string
	Server string
	// MovedFrom is the server in the file, if a job has moved the instance to another one.
	MovedFrom string
	// Job is the job that is moving the instance, or empty.
	Job string
}

// Servers returns the servers of this node's inventory file with their current instances, to configure a driver.
// If Redis has lost the inventory, it imports the file again, because a driver without servers stops all
// instances. An inventory with a version is not lost: another node has already read a file without servers.
func (inv *Inventory) Servers(ctx context.Context) ([]relay.Server, error) {
	l, err := inv.List(ctx)
	if own := inv.operator.Load(); err == nil && l.Version == 0 && len(l.Servers) == 0 && len(own.servers) > 0 {
		if _, err := inv.runImport(ctx, own.file, false); err != nil {
			return nil, err
		}
		l, err = inv.List(ctx)
	}
	return slices.DeleteFunc(l.Servers, func(s relay.Server) bool { return s.Settings == nil }), err
}

// List returns the complete inventory. During an import the result may be inconsistent. The version changes when the
// import ends.
func (inv *Inventory) List(ctx context.Context) (Listing, error) {
	s, err := inv.readSnapshot(ctx)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Version: s.version}
	byContainer, byServer := map[string][]ListedInstance{}, map[string][]string{}
	for field, file := range s.instances {
		container, instance, _ := strings.Cut(field, "/")
		i := ListedInstance{ID: instance, Server: s.currentServer(field), Job: s.migrating[field]}
		if i.Server != file {
			i.MovedFrom = file
		}
		byContainer[container] = append(byContainer[container], i)
		byServer[i.Server] = append(byServer[i.Server], instance)
	}
	for id, stored := range s.servers {
		server := relay.Server{ID: id, Cluster: stored.Cluster, Settings: inv.settings(id), Instances: byServer[id]}
		slices.Sort(server.Instances)
		l.Servers = append(l.Servers, server)
	}
	slices.SortFunc(l.Servers, func(a, b relay.Server) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range s.containers {
		instances := byContainer[c.ID]
		slices.SortFunc(instances, func(a, b ListedInstance) int { return strings.Compare(a.ID, b.ID) })
		l.Containers = append(l.Containers, ListedContainer{Container: c, Instances: instances})
	}
	slices.SortFunc(l.Containers, func(a, b ListedContainer) int { return strings.Compare(a.ID, b.ID) })
	return l, nil
}

// inventorySnapshot is the inventory in Redis.
type inventorySnapshot struct {
	version    int64
	servers    map[string]storedServer
	containers map[string]Container
	// The keys are <container>/<instance>. The values are servers, servers and jobs.
	instances, moved, migrating map[string]string
}

// currentServer returns the server that an instance is on.
func (s *inventorySnapshot) currentServer(field string) string {
	return cmp.Or(s.moved[field], s.instances[field])
}

func (inv *Inventory) readSnapshot(ctx context.Context) (*inventorySnapshot, error) {
	s := &inventorySnapshot{servers: map[string]storedServer{}, containers: map[string]Container{}}
	n := inv.keys.Partitions()
	var servers *redis.MapStringStringCmd
	moved, instances := make([]*redis.MapStringStringCmd, n), make([]*redis.MapStringStringCmd, n)
	containers, migrating := make([]*redis.MapStringStringCmd, n), make([]*redis.MapStringStringCmd, n)
	var err error
	// Read the version first, so a caller with old content sees a newer version later and reads again.
	if s.version, err = inv.importCount(ctx); err != nil {
		return nil, err
	}
	_, err = inv.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		servers = pipe.HGetAll(ctx, inv.keys.servers())
		for p := range n {
			migrating[p] = pipe.HGetAll(ctx, inv.keys.activeMigrations(p))
			moved[p] = pipe.HGetAll(ctx, inv.keys.migratedTo(p)) // before instances, as in Find
			instances[p] = pipe.HGetAll(ctx, inv.keys.instances(p))
			containers[p] = pipe.HGetAll(ctx, inv.keys.containers(p))
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError("read the inventory", err)
	}
	for id, value := range servers.Val() {
		if s.servers[id], err = decodeStoredServer(id, value); err != nil {
			return nil, err
		}
	}
	for p := range n {
		for id, value := range containers[p].Val() {
			if s.containers[id], err = decodeContainer(id, value); err != nil {
				return nil, err
			}
		}
	}
	s.instances, s.moved, s.migrating = mergeMaps(instances), mergeMaps(moved), mergeMaps(migrating)
	return s, nil
}

// mergeMaps merges the maps of all partitions.
func mergeMaps(parts []*redis.MapStringStringCmd) map[string]string {
	all := map[string]string{}
	for _, part := range parts {
		maps.Copy(all, part.Val())
	}
	return all
}
