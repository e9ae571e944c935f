// Package eventlog stores accepted notifications in the log, a stream in Redis for each partition. It appends, reads,
// follows and trims the log.
//
// The positions of its readers belong to the readers. The queues of the sinks are in package queue.
package eventlog
