package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// checkMovedInstances rejects a new container of an instance, and a new hub of its container, if only Redis contains the current
// server of the instance. Redis stores the server below both.
func (i *importRun) checkMovedInstances(snapshot *inventorySnapshot) error {
	fields := make(map[string]string, len(snapshot.moved)) // by instance, whose ID is unique
	for field := range snapshot.moved {
		_, instance, _ := strings.Cut(field, "/")
		fields[instance] = field
	}
	for _, c := range i.file.Containers {
		for _, instance := range c.Instances {
			field := fields[instance.ID]
			moved := snapshot.moved[field]
			if moved == "" || moved == instance.Server || !i.hasServer(moved) {
				continue
			}
			changed := "hub"
			switch {
			case field != InstanceField(c.ID, instance.ID):
				changed = "container"
			case snapshot.containers[c.ID].Hub == c.Hub:
				continue
			}
			return &RejectedError{Instances: []string{field}, Reason: fmt.Sprintf(
				"the file changes the %s of the instance %s, but a job has moved it to %s; change its server_id in the file to that server",
				changed, instance.ID, moved)}
		}
	}
	return nil
}

// checkServersOfJobs rejects the removal of a server that is the destination of a job, and new settings of the servers of a job
// that has begun, because it would be continued in another place.
func (i *importRun) checkServersOfJobs(ctx context.Context, snapshot *inventorySnapshot) error {
	var busy []string
	var fields [][2]string // order and state of each job
	for field, id := range snapshot.migrating {
		name, _, _ := strings.Cut(field, "/")
		if c, ok := snapshot.containers[name]; ok {
			busy = append(busy, field)
			key := i.keys.job(id, i.keys.Partition(c.Hub))
			fields = append(fields, [2]string{key, "order"}, [2]string{key, "state"})
		}
	}
	if len(fields) == 0 {
		return nil
	}
	texts, err := i.readFields(ctx, fields)
	if err != nil {
		return err
	}
	for n := range busy {
		var o jobSpec
		if json.Unmarshal([]byte(texts[2*n]), &o) != nil {
			continue
		}
		if !i.hasServer(o.Destination) {
			return &RejectedError{Instances: busy[n : n+1], Reason: fmt.Sprintf(
				"the file removes server %s, but a job is moving %s to it; keep the server until the job has ended",
				o.Destination, busy[n])}
		}
		hasBegun := relay.JobState(texts[2*n+1]) == relay.JobRunning
		for _, id := range []string{o.Source, o.Destination} {
			if hasBegun && i.changesSettings(snapshot, id) {
				return &RejectedError{Instances: busy[n : n+1], changesSettings: true, Reason: fmt.Sprintf(
					"the file changes the settings of server %s, but a job is moving %s; keep the settings until the job has ended, "+
						"or cancel it", id, busy[n])}
			}
		}
	}
	return nil
}

// changesSettings reports whether the file changes the settings of a server.
func (i *importRun) changesSettings(snapshot *inventorySnapshot, id string) bool {
	old, existed := snapshot.servers[id]
	n, found := i.findServer(id)
	return existed && found && old.SettingsSHA256 != newStoredServer(i.file.Servers[n]).SettingsSHA256
}

// hasServer reports whether the file has a server.
func (i *importRun) hasServer(server string) bool {
	_, found := i.findServer(server)
	return found
}

// findServer returns the index of a server in the file.
func (i *importRun) findServer(server string) (index int, found bool) {
	return slices.BinarySearchFunc(i.file.Servers, server, func(s relay.Server, id string) int {
		return cmp.Compare(s.ID, id)
	})
}
