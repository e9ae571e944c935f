package queue

import "github.com/hubrelay/hubrelay/internal/keyspace"

// Key is the stream of a sink's undelivered entries of one partition.
func Key(k keyspace.Space, sink string, partition int) string {
	return k.InPartition("queue:"+sink, partition)
}

// Keys returns the streams of a sink in all partitions.
func Keys(k keyspace.Space, sink string) []string {
	keys := make([]string, k.Partitions())
	for p := range keys {
		keys[p] = Key(k, sink, p)
	}
	return keys
}

// SinkPositionsKey is the hash of the position up to which each sink has been served from a partition's log.
func SinkPositionsKey(k keyspace.Space, partition int) string {
	return k.InPartition("sinks", partition)
}
