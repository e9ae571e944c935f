// Package keyspace builds the names of keys in Redis, and maps hubs to partitions.
//
// The names of a store belong to the keys.go of its package.
package keyspace
