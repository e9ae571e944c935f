package migration

import "github.com/hubrelay/hubrelay/internal/keyspace"

// keys names the Redis keys of the inventory and of jobs.
type keys struct{ keyspace.Space }

// servers returns the hash of all servers of the inventory by ID, as JSON with cluster and settings_sha256. All
// inventory keys that do not belong to a hub share one slot.
func (k keys) servers() string { return k.InGroup("inventory", ":servers") }

// inventoryVersion returns the counter of imports that changed the inventory.
func (k keys) inventoryVersion() string { return k.InGroup("inventory", ":version") }

// inventoryImports returns the hash with the number of started imports and the state of the last one.
func (k keys) inventoryImports() string { return k.InGroup("inventory", ":imports") }

// inventorySeed returns the key of the checksum of the inventory file that a daemon imported last.
func (k keys) inventorySeed() string { return k.InGroup("inventory", ":seed") }

// containers returns the hash of the containers of a partition by ID, as JSON with hub, account, environment and
// stateful.
func (k keys) containers(partition int) string {
	return k.InPartition("inventory:containers", partition)
}

// instances returns the hash of the servers of the inventory by <container>/<instance>.
func (k keys) instances(partition int) string {
	return k.InPartition("inventory:instances", partition)
}

// lastImport returns the key of the number of the last import into a partition.
func (k keys) lastImport(partition int) string {
	return k.InPartition("inventory:imported", partition)
}

// migratedTo returns the hash of the servers to which jobs moved <container>/<instance>. It overrides instances.
func (k keys) migratedTo(partition int) string { return k.InPartition("moved", partition) }

// activeMigrations returns the hash of the running jobs by <container>/<instance>.
func (k keys) activeMigrations(partition int) string { return k.InPartition("migrating", partition) }

// job returns the hash of a migration job, in the slot of its hub's partition.
func (k keys) job(id string, partition int) string { return k.InPartitionSlot("job:"+id, partition) }

// jobs returns the stream of a partition's unfinished jobs. Its only consumer group is workers.
func (k keys) jobs(partition int) string { return k.InPartition("jobs", partition) }

// instanceJobs returns the list of the jobs of an instance, newest first.
func (k keys) instanceJobs(partition int, instance string) string {
	return k.InPartition("jobs", partition) + ":" + instance
}

// recentJobs returns the list of the newest jobs of a partition, for operators.
func (k keys) recentJobs(partition int) string { return k.InPartition("jobs:recent", partition) }

// migrationLeases returns the hash of the last fencing token of each migrated instance.
func (k keys) migrationLeases(partition int) string {
	return k.InPartition("migrating:leases", partition)
}

// serverSlots returns the hash of the jobs that hold or wait for server slots.
func (k keys) serverSlots() string { return k.Global("turns") }

// accountStarts returns the sorted set of accounts by the time of their last start, in the slot of serverSlots.
func (k keys) accountStarts() string { return k.Global("turns:accounts:{" + k.serverSlots() + "}") }
