// Package migration moves container instances between the servers of a cluster, and knows which of them there are.
//
// The [Inventory] is what an operator wrote in a file and where jobs have moved instances since. Everything is in Redis;
// nodes are interchangeable. How an instance is moved is a driver's business, known here by relay.Driver alone: plugins,
// configuration and HTTP must not come in.
package migration
