// Package migration moves container instances between the servers of a cluster, and knows which of them there are.
//
// The [Inventory] is what an operator wrote in a file and where jobs have moved instances since. The [Service] answers
// requests by storing jobs, and the [Worker] has them done by a [relay.Driver]. Everything is in Redis; nodes are
// interchangeable. Plugins, configuration and HTTP must not come in.
//
// A job lives in its hub's partition, so that each of its changes is stored by one script together with the notifications
// that tell of it: there is no change without its event, and no event without its change. Jobs wait in a stream with a
// consumer group; a job whose worker shows no life is taken up by another, with a higher lease. Every write of a worker
// names its lease and changes nothing once there is a higher one, and the driver does the same on the servers.
package migration
