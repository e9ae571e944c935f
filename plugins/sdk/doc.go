// Package sdk is what the author of a plugin needs besides package relay: a plugin is a main function that calls
// [ServeSink] with a handler.
//
//	func main() {
//		err := sdk.ServeSink(func(ctx context.Context, n relay.Notification) error {
//			slog.Info("seen", "topic", n.Topic)
//			return nil
//		})
//		if err != nil {
//			fmt.Fprintln(os.Stderr, err)
//			os.Exit(1)
//		}
//	}
//
// # Errors
//
// A handler makes one attempt and never retries. It returns nil once it has taken responsibility for the notification. A
// plain error is retried on the sink's schedule; relay.RetryAfter names the earliest time, relay.Permanent makes a dead
// letter of the delivery, and relay.Gone disables the sink, which keeps its backlog. The text of an error is logged and
// kept: it must hold no secret. A handler that panics has failed that attempt, and the plugin lives on.
//
// What was delivered may come again, with the same id, after a crash or where an answer came too late.
//
// # Concurrency
//
// The handler is called concurrently, as often as the sink's `concurrency` allows (16 unless configured) and at most as
// [Concurrency] says. Concurrency(1) calls it once at a time; `ordering` in the sink's configuration keeps what belongs
// to one container or hub in order. The handler's context ends with the attempt's time (the sink's `timeout`) and when
// the daemon wants the answer no more: a handler that goes on nevertheless is taken for hung some seconds later, and the
// plugin is killed and started anew.
//
// # Configuration
//
// What the operator writes under `config` is decoded into the struct that [Config] names, by its `json` tags. Unknown keys are
// refused, and so is what the struct's Validate method (func() error) refuses: the operator reads the error in the daemon's log.
//
// # Log
//
// slog's default logger, and package log, write into the daemon's log, at their level and with the sink's name. So does
// what is written to standard output and standard error, line by line.
//
// # Shutdown
//
// When the daemon ends, or the sink is taken away, no more deliveries come; those under way may end, then what [OnStop]
// named is called, and ServeSink returns. All of it may take three seconds, then the process is killed. When the daemon
// is killed, the handlers' contexts end and ServeSink returns, so that no plugin is left behind.
//
// Nothing of the daemon may come in here: what is imported here, every plugin is built with.
package sdk
