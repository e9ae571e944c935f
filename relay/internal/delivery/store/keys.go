package store

import "github.com/hubrelay/hubrelay/internal/keyspace"

// RetryKey is the sorted set of a sink's scheduled retries by due time in unix milliseconds.
func RetryKey(k keyspace.Space, sink string) string { return k.OfSink("retry", sink) }

// RecordsKey is the hash of the encoded deliveries by ID.
func RecordsKey(k keyspace.Space, sink string) string { return k.OfSink("records", sink) }

// ArrivalKey is the sorted set of the arrival times of scheduled deliveries in unix milliseconds.
func ArrivalKey(k keyspace.Space, sink string) string { return k.OfSink("arrivals", sink) }

// OrderKey is the sorted set of an ordered sink's scheduled deliveries by ordering key and order of arrival.
func OrderKey(k keyspace.Space, sink string) string { return k.OfSink("order", sink) }

// OrderMembersKey is the hash of the members of [OrderKey] by delivery ID.
func OrderMembersKey(k keyspace.Space, sink string) string { return k.OfSink("ordermembers", sink) }

// DeadLettersKey is the stream of a sink's dead letters.
func DeadLettersKey(k keyspace.Space, sink string) string { return k.OfSink("deadletters", sink) }

// DeadLetterIndexKey is the hash of the entry IDs and accounts of dead letters by delivery ID.
func DeadLetterIndexKey(k keyspace.Space, sink string) string { return k.OfSink("deadindex", sink) }

// FailureStartKey is the time of the first failure since the last success in unix milliseconds.
func FailureStartKey(k keyspace.Space, sink string) string { return k.OfSink("failing", sink) }

// StatsKey is the hash of a sink's statistics over all nodes and restarts.
func StatsKey(k keyspace.Space, sink string) string { return k.OfSink("stats", sink) }

// DigestsKey is the sorted set of the groups with an open digest by the time when it is sealed, in unix milliseconds.
func DigestsKey(k keyspace.Space, sink string) string { return k.OfSink("digests", sink) }

// DigestKey is the hash of the open digest of a group.
func DigestKey(k keyspace.Space, sink, group string) string {
	return k.OfSink("digest", sink) + ":" + group
}

// DigestCountKey is the number of notifications in all open digests of a sink.
func DigestCountKey(k keyspace.Space, sink string) string { return k.OfSink("digestcount", sink) }

// DigestBytesKey is the estimated memory of all open digests of a sink, in bytes.
func DigestBytesKey(k keyspace.Space, sink string) string { return k.OfSink("digestbytes", sink) }

// BatchedIDsKey is the hash of the IDs of the notifications in a sink's last batches.
func BatchedIDsKey(k keyspace.Space, sink string) string { return k.OfSink("batchids", sink) }

// BatchLogKey is the list of those IDs by batch, newest first.
func BatchLogKey(k keyspace.Space, sink string) string { return k.OfSink("batchlog", sink) }

// SharedStateKey is the hash of one value that a sink shares between nodes. The name is given as a hash.
func SharedStateKey(k keyspace.Space, sink, name string) string {
	return k.OfSink("shared", sink) + ":" + name
}

// StateKey is the hash of a paused or disabled sink. An active sink has none.
func StateKey(k keyspace.Space, sink string) string { return k.Global("sink:" + sink) }

// RateKey is the hash of a rate limit, which belongs to one sink or to several with one destination.
func RateKey(k keyspace.Space, name string) string { return k.Global("rate:" + name) }

// ErasuresKey is the sorted set of the accounts that were erased in the last day, by the times in unix milliseconds.
func ErasuresKey(k keyspace.Space) string { return k.Global("erasures") }

// ChangesKey counts the changes of all sinks that nodes should see at once.
func ChangesKey(k keyspace.Space) string { return k.Global("sinkchanges") }
