// Package store keeps the retry queues, dead letters, digests, batches, rates, states and statistics of all sinks in
// Redis.
//
// Each type implements one interface that its user declares. A change that touches several keys is one Lua script, so
// a killed process leaves nothing half done. All times come from Redis, so nodes need no synchronized clocks. The
// package decides nothing about a delivery and imports no other package of delivery.
//
// Keys of a sink. In a cluster, all but the last three share a slot. Times are unix milliseconds unless stated.
//
//	hubrelay:retry:<sink>           ZSET of delivery IDs by due time; a claim raises the score to the end of its lease
//	                                minus half a millisecond
//	hubrelay:records:<sink>         HASH of the encoded deliveries ([Record]) by ID
//	hubrelay:arrivals:<sink>        ZSET of the IDs by arrival time
//	hubrelay:order:<sink>           ZSET of an ordered sink, all scores 0: a member is the ordering key, a rising
//	                                number and the ID, so the deliveries of a key are one range in order
//	hubrelay:ordermembers:<sink>    HASH of those members by ID; the empty field is the last number
//	hubrelay:digests:<sink>         ZSET of groups with an open digest by the time when it is sealed
//	hubrelay:digest:<sink>:<group>  HASH of an open digest: id, by, count, first, last, listed notifications, last IDs
//	hubrelay:digestcount:<sink>     number of notifications in all open digests
//	hubrelay:digestbytes:<sink>     estimated memory of all open digests, in bytes
//	hubrelay:batchids:<sink>        HASH of the IDs of the notifications in the last sealed batches
//	hubrelay:batchlog:<sink>        LIST of those IDs by batch, newest first
//	hubrelay:deadletters:<sink>     STREAM of dead letters
//	hubrelay:deadindex:<sink>       HASH of the entry ID in that stream, a space and the account, by delivery ID
//	hubrelay:failing:<sink>         time of the first failure since the last success
//	hubrelay:stats:<sink>           HASH of the statistics of all nodes: delivered, retried, dropped, failed:<reason>,
//	                                last_success, last_error (at most 512 bytes), last_error_at
//	hubrelay:shared:<sink>:<hash>   HASH of one shared value of a sink and its lock; it expires
//	hubrelay:sink:<sink>            HASH of a paused or disabled sink: state, reason, since, config
//	hubrelay:rate:<name>            HASH with tat and rest in microseconds: when the next attempt may start at an even
//	                                pace, and the end of a cooldown; of all sinks that share the rate; it expires
//	hubrelay:erasures               ZSET of the accounts that were erased in the last day, by unix milliseconds
//	hubrelay:sinkchanges            counter for all sinks: a node that sees a new value checks its sinks at once
package store
