package sourcestore

import "github.com/hubrelay/hubrelay/internal/keyspace"

// PositionKey is the hash of a source's position and statistics, in the slot of a partition.
func PositionKey(k keyspace.Space, name string, partition int) string {
	return k.InPartition("source:"+name, partition)
}

// StepKey is the hash of the last journal step in a partition whose slot differs from the position's.
func StepKey(k keyspace.Space, name string, partition int) string {
	return k.InPartition("source:taken:"+name, partition)
}

// QuarantineStepKey is the hash of the last journal step in the quarantine.
func QuarantineStepKey(k keyspace.Space, name string) string {
	return k.InGroup("quarantine", ":source:"+name)
}

// StatusKey stores the status that the node which reads a source reports.
func StatusKey(k keyspace.Space, name string) string { return k.Global("source:status:" + name) }
