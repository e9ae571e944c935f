// Package queue stores the queue of each sink, a stream in Redis for each partition, and delivers from it. [Store]
// copies matched log entries into the queues and stores the positions of sinks. A [Router] runs Watermill for one
// sink: it turns the messages of a queue into deliveries.
//
// Matching belongs to package dispatch, attempts and retries belong to package delivery. Reading the streams belongs
// to package subscriber.
package queue
