// Package subscriber implements a Watermill subscriber on Redis Streams, with consumer groups and at-least-once
// delivery.
//
// It knows nothing about sinks, partitions or notifications; see package queue.
package subscriber
