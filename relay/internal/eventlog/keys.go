package eventlog

import "github.com/hubrelay/hubrelay/internal/keyspace"

// Key is the stream of a partition's notifications, with the fields id, topic, hub, account and data.
func Key(k keyspace.Space, partition int) string { return k.InPartition("log", partition) }

// DispatchPositionKey is the hash of the position up to which a partition's log has been dispatched. Package queue
// writes it, and [Log.Trim] keeps what follows.
func DispatchPositionKey(k keyspace.Space, partition int) string {
	return k.InPartition("dispatched", partition)
}

// IdempotencyKey is the record of one idempotency key, which is given as a hash.
func IdempotencyKey(k keyspace.Space, partition int, hash string) string {
	return k.InPartition("idempotency", partition) + ":" + hash
}
