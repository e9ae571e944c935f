// Package condition compiles the expression in a sink's `when` into a [relay.Condition], which is true or false
// for a notification.
//
// The language is a subset of github.com/expr-lang/expr. It has no functions with side effects, no access to the
// time, and none whose result is larger than the arguments. The allowed functions are listed explicitly, so a new
// version of the library adds nothing.
//
// Every evaluation ends, whatever a notification contains: the size of the text and the number of nodes are
// limited, and the iterations of loops are counted and timed. Everything else takes time proportional to the
// notification, whose size ingest limits.
//
// Sinks, the configuration and the handling of failures do not belong here.
package condition
