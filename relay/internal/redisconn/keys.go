package redisconn

import "github.com/hubrelay/hubrelay/internal/keyspace"

// PartitionsKey stores the number of partitions that the data was written with.
func PartitionsKey(k keyspace.Space) string { return k.Global("partitions") }

// ProbeKey is the stream of readiness probes.
func ProbeKey(k keyspace.Space) string { return k.Global("probe") }

// CursorKeyKey stores the secret that encrypts cursors.
func CursorKeyKey(k keyspace.Space) string { return k.Global("cursorkey") }

// InstanceKey stores the ID of this relay.
func InstanceKey(k keyspace.Space) string { return k.Global("instance") }
