// Package notice sends the relay's own notifications, such as hubrelay.sink.disabled, to the sinks that match them.
//
// Notices are not in the log. The node on which something happened schedules them for each matching sink. A sink gets
// no notice about itself. The package does not decide when a sink is disabled or a delivery becomes a dead letter.
package notice
