// Package condition turns the text of a sink's `when` into a [relay.Condition]: a question about a notification that is
// answered with true or false.
//
// The language is that of github.com/expr-lang/expr, cut down to what reads: no function that reaches outside, tells
// the time, or builds something larger than what it was given. What is allowed is named in one list, so that a newer
// version of the library brings nothing along by itself.
//
// Whatever a notification holds, an evaluation ends: the text is bounded in bytes and nodes, and the passes of its
// loops are counted and timed. What runs once takes time in proportion to the notification, whose size the ingest bounds.
//
// Nothing here knows of sinks, of the configuration or of what happens when a condition fails.
package condition
