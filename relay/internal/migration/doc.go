// Package migration moves container instances between the servers of a cluster, and stores the inventory of
// servers, containers and instances.
//
// The [Inventory] combines the operator's file with the moves that jobs have made since. The [Service] turns
// requests into jobs, and the [Worker] runs them with a [relay.Driver]. All state is in Redis, so nodes are
// interchangeable. [Module] connects both to the daemon, and relay/daemon/modules.go is the only place that imports
// this package.
//
// A job is stored in the partition of its hub. One script stores each change of a job together with the events of this
// change, so both are stored or neither. Jobs wait in a stream with a consumer group. If the worker of a job stops
// sending heartbeats, another worker claims the job with a higher lease. Every write of a worker includes its lease and
// changes nothing if a higher lease exists. The driver does the same on the servers.
package migration
