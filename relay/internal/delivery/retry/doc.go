// Package retry schedules when the retry queues of sinks are polled, and runs the claimed deliveries.
//
// One goroutine polls for all sinks of a node, with one Redis pipeline for up to 128 sinks. It knows neither how a
// delivery is attempted nor what its outcome means; that is the job of a [Sink].
package retry
