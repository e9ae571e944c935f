// Package delivery does once, for every sink, what a sink must not do itself: it makes attempts with a time limit, says
// what follows from each, parks failed deliveries in Redis until they are due again, and writes dead letters.
//
// A sink makes one attempt (relay.Sink). Where deliveries come from is not known here: relay/internal/dispatch hands fresh ones
// to [Pipeline.Handle], and [RetryScheduler] claims the due ones. No sink, no Watermill and no configuration may come in;
// go-redis stays in the files of the Store.
//
// What lives in Redis for a sink, all in one slot of a cluster but the last three:
//
//	hubrelay:retry:<sink>        ZSET of delivery ids by due time in unix milliseconds; a claim raises the score to its
//	                             end, less half a millisecond
//	hubrelay:parked:<sink>       HASH of their bodies by id
//	hubrelay:since:<sink>        ZSET of their ids by when the delivery came, in unix milliseconds
//	hubrelay:line:<sink>         ZSET, all with the score 0, of those that keep an order: a member is the ordering key, a
//	                             number that counts up, and the id, so that all of a key are one range, in order
//	hubrelay:lined:<sink>        HASH of those members by id; under the empty name, the last number
//	hubrelay:digests:<sink>      ZSET of groups that gather, by when their digest is to be sealed in unix milliseconds
//	hubrelay:digest:<sink>:<group>  HASH of an open digest: id, by, count, first, last, what it lists, the last ids
//	hubrelay:gathering:<sink>    how many notifications the open digests hold together
//	hubrelay:batched:<sink>      HASH of the ids of the notifications that were sealed in batches last
//	hubrelay:batches:<sink>      LIST of those ids by batch, the latest first
//	hubrelay:deadletters:<sink>  STREAM of what will not be tried again
//	hubrelay:deadindex:<sink>    HASH of the positions in that stream by delivery id; under the empty name, whether it
//	                             holds all of them (those that were written before there was an index are added on demand)
//	hubrelay:failing:<sink>      when the first failure since the last success was, in unix milliseconds
//	hubrelay:figures:<sink>      HASH of what happened, on all nodes: delivered, retried, failed:<reason>, last_success,
//	                             last_error (at most 512 bytes) and last_error_at; times are unix milliseconds
//	hubrelay:sink:<sink>         HASH with state, reason, since, config; there only while the sink is paused or disabled
//	hubrelay:rate:<name>         HASH with tat and rest in microseconds: when the next attempt would begin at an even pace, and
//	                             until when none may; for each sink with a rate, or all that share one (relay.RateKeyer);
//	                             it expires when it says nothing any more
//	hubrelay:sinkchanges         counter for all sinks: nodes that see it change look at their sinks' states and queues
//
// What failed deliveries take of Redis is bounded: while as many are parked as [Options] allow, fresh ones are not attempted
// and stay in their queue, which has a bound of its own. Nothing that is parked is dropped; of
// dead letters the oldest are, beyond the same number.
//
// A sink with a rate makes no attempt, fresh or retried, that the rate does not allow on all nodes together; what an attempt
// asks of the destination besides (relay.Spender) puts later ones off. A destination
// that answers 429, or 503 with a time, is left alone by the whole sink: for the time it named, an hour at most, or else
// for a second, doubling up to a minute.
//
// A sink may keep the order of the log among the deliveries of a hub or a container ([Ordering]). Then one node leads
// ([Pipeline.RunAsLeader]) and makes all attempts; what is behind a parked delivery of its key is parked in line behind it, is
// never due before it is the first, and becomes due when the one before it leaves, whatever became of that.
//
// A sink with a digest attempts nothing that is fresh: [Pipeline.Handle] gathers it in Redis. When its time has come one
// script makes a parked delivery of an open digest, with an id of its own, which is never changed again: attempts, other
// nodes, dead letters and replays have the same. While the destination is down or rests nothing is sealed. As
// many digests are open, and deliveries parked, as [Options] allow; what would open another is attempted alone. A kind of sink
// that gathers attempts alone what its rate allows at once, and gathers what would have to wait. What a replay of the log
// parks is gathered likewise; a dead letter that is taken back goes as it was.
//
// A sink with batches attempts nothing alone either: calls of [Pipeline.Handle] wait for each other, and when a batch of them
// is full or late and an attempt may begin, one script makes a parked delivery of it, which the same node attempts at once.
//
// What happens to a sink ([Notices]) is told to other sinks that name the relay's own topics, by parking it for them.
//
// A sink whose receiver answered that it wants nothing more, or that has only failed for too long, is disabled on all
// nodes and over restarts, and keeps its backlog. It is enabled again when its configuration changes or when an operator resumes it. A sink that an operator
// paused stays paused until it is resumed, whatever the configuration says.
package delivery
