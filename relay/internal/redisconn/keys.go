package redisconn

import "github.com/hubrelay/hubrelay/internal/keyspace"

// PartitionsKey stores the number of partitions that the data was written with.
func PartitionsKey(k keyspace.Space) string { return k.Global("partitions") }

// ProbeKey is the stream of readiness probes.
func ProbeKey(k keyspace.Space) string { return k.Global("probe") }

// InstanceKey stores the ID of this relay.
func InstanceKey(k keyspace.Space) string { return k.Global("instance") }
