package migration

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Listing is the whole inventory, ordered by id.
type Listing struct {
	Version    int64
	Servers    []relay.Server // with their Instances
	Containers []ListedContainer
}

// ListedContainer is a container with where its instances are.
type ListedContainer struct {
	Container
	Instances []ListedInstance
}

// ListedInstance says where an instance is now.
type ListedInstance struct {
	ID     string
	Server string
	// MovedFrom is the server that the file names, where a job has moved the instance to another since.
	MovedFrom string
	// Job is the job that moves the instance now, or empty.
	Job string
}

// Servers returns the servers that the operator's file of this node defines, with the instances that are there now, for a
// driver to be configured with. If Redis has lost the inventory, it imports the file again: a driver that is told of no
// servers stops all instances.
func (v *Inventory) Servers(ctx context.Context) ([]relay.Server, error) {
	l, err := v.List(ctx)
	if own := v.operator.Load(); err == nil && len(l.Servers) == 0 && len(own.servers) > 0 {
		if _, err := v.runImport(ctx, own.file, false); err != nil {
			return nil, err
		}
		l, err = v.List(ctx)
	}
	return slices.DeleteFunc(l.Servers, func(s relay.Server) bool { return s.Settings == nil }), err
}

// List returns the whole inventory. An import that runs may be seen half done; the version is raised when it is over.
func (v *Inventory) List(ctx context.Context) (Listing, error) {
	s, err := v.readSnapshot(ctx)
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
		server := relay.Server{ID: id, Cluster: stored.Cluster, Settings: v.settings(id), Instances: byServer[id]}
		slices.Sort(server.Instances)
		l.Servers = append(l.Servers, server)
	}
	slices.SortFunc(l.Servers, func(a, b relay.Server) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range s.containers {
		here := byContainer[c.ID]
		slices.SortFunc(here, func(a, b ListedInstance) int { return strings.Compare(a.ID, b.ID) })
		l.Containers = append(l.Containers, ListedContainer{Container: c, Instances: here})
	}
	slices.SortFunc(l.Containers, func(a, b ListedContainer) int { return strings.Compare(a.ID, b.ID) })
	return l, nil
}

// inventorySnapshot is everything that Redis has of the inventory.
type inventorySnapshot struct {
	version    int64
	servers    map[string]storedServer
	containers map[string]Container
	// By <container>/<instance>: servers, and jobs.
	instances, moved, migrating map[string]string
}

// currentServer is where an instance is.
func (s *inventorySnapshot) currentServer(field string) string {
	return cmp.Or(s.moved[field], s.instances[field])
}

func (v *Inventory) readSnapshot(ctx context.Context) (*inventorySnapshot, error) {
	s := &inventorySnapshot{servers: map[string]storedServer{}, containers: map[string]Container{}}
	n := v.keys.Partitions()
	var servers *redis.MapStringStringCmd
	moved, instances := make([]*redis.MapStringStringCmd, n), make([]*redis.MapStringStringCmd, n)
	containers, migrating := make([]*redis.MapStringStringCmd, n), make([]*redis.MapStringStringCmd, n)
	var err error
	if s.version, err = v.importCount(ctx); err != nil { // before what it counts: a reader of old contents comes again
		return nil, err
	}
	_, err = v.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		servers = pipe.HGetAll(ctx, v.keys.Servers())
		for p := range n {
			migrating[p] = pipe.HGetAll(ctx, v.keys.ActiveMigrations(p))
			moved[p] = pipe.HGetAll(ctx, v.keys.MigratedTo(p)) // before instances, as in Find
			instances[p] = pipe.HGetAll(ctx, v.keys.Instances(p))
			containers[p] = pipe.HGetAll(ctx, v.keys.Containers(p))
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError("read the inventory", err)
	}
	for id, value := range servers.Val() {
		if s.servers[id], err = readServer(id, value); err != nil {
			return nil, err
		}
	}
	for p := range n {
		for id, value := range containers[p].Val() {
			if s.containers[id], err = containerOf(id, value); err != nil {
				return nil, err
			}
		}
	}
	s.instances, s.moved, s.migrating = mergeMaps(instances), mergeMaps(moved), mergeMaps(migrating)
	return s, nil
}

// mergeMaps is one map of those of all partitions.
func mergeMaps(parts []*redis.MapStringStringCmd) map[string]string {
	all := map[string]string{}
	for _, part := range parts {
		for k, v := range part.Val() {
			all[k] = v
		}
	}
	return all
}
