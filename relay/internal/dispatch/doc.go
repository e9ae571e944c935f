// Package dispatch brings notifications from the log to the sinks: a [Dispatcher] for each partition matches every
// notification once against all sinks and copies it into the queues of those that want it, and a [Router] for each
// sink hands what stands in its queue to whoever delivers it. [OrderingKey] lets a Subscriber hand over what belongs together one
// after the other.
//
// How a delivery is attempted and tried again is relay/internal/delivery's business; dispatch knows it only as a [Handler]. No
// sink and no configuration may come in, and go-redis stays in relay/internal/backbone.
package dispatch
