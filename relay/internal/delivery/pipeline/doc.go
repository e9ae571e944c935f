// Package pipeline delivers to one sink: attempts with a time limit, retries, digests, batches, order and dead letters.
//
// A sink makes one attempt ([relay.Sink]); everything else is done here, once for all sinks. Every delivery passes the
// same chain of stages, which [Pipeline] builds. Fresh deliveries come from the queue of a sink through
// [Pipeline.Handle], and due retries from package retry through [Pipeline.Retry]. They differ only in their [Origin],
// which stores the outcome. Packages admission and attempt do the waiting and the calling, store has everything in
// Redis, and notice informs other sinks. No sink, no Watermill and no configuration may come into this package.
//
// Guarantees:
//
//   - An outcome is stored before the queue gets its ack, by one script. A killed process loses no delivery; deliveries
//     that were in progress may be repeated. A claim of a killed node expires.
//   - The retry queue is bounded: while as many deliveries are scheduled as [Options] allow, fresh ones stay in their
//     queue, which has its own limit. Nothing scheduled is dropped. Of too many dead letters, the oldest are dropped.
//   - A sink with a rate starts no attempt, fresh or retried, that the rate does not allow on all nodes together.
//     Additional requests ([relay.SinkSettings.CountRequests]) delay later attempts. If a destination responds with
//     429, or with 503 and a time, the sink sends nothing for that time, at most an hour. Without a time, the pause is
//     a second and doubles up to a minute.
//   - An ordered sink keeps the order of the log among the deliveries of a hub or container. One node, the leader
//     ([Pipeline.RunAsLeader]), makes all attempts. A delivery that follows a scheduled one with its key is scheduled
//     too. It is never due before it is the first with that key, and becomes due when the one before it has left.
//   - A sink with digests attempts nothing fresh. Notifications are added to open digests in Redis. When the time has
//     come, one script makes a scheduled delivery of a digest, which never changes again: attempts, other nodes, dead
//     letters and replays have the same. It is not sealed while the destination fails or has asked for a pause.
//     There are at most as many open digests and scheduled deliveries as [Options] allow, and more are
//     attempted alone. A sink kind that prefers digests to waiting attempts alone what the rate allows at once. A
//     replay of the log also fills digests, but a replayed dead letter is delivered as it was.
//   - A sink with batches attempts nothing alone either. Calls of [Pipeline.Handle] wait for each other. When a batch
//     is full or late and an attempt may start, one script makes a claimed delivery of it, which the same node
//     attempts.
//   - A sink whose destination is gone, or that has only failed for too long, is disabled on all nodes and across
//     restarts, and keeps its backlog. It is enabled when its configuration changes or an operator resumes it. Only an
//     operator resumes a paused sink.
package pipeline
