// Package sdk is what the author of a plugin needs besides package relay: a plugin is a main function that calls
// [ServeSink] with a handler, or [ServeDriver] with a driver.
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
// # Errors of a sink
//
// A handler makes one attempt and never retries. It returns nil once it has taken responsibility for the notification. A
// plain error is retried on the sink's schedule; relay.RetryAfter names the earliest time, relay.Permanent makes a dead
// letter of the delivery, and relay.Gone disables the sink, which keeps its backlog. The text of an error is logged and
// kept: it must hold no secret. A handler that panics has failed that attempt, and the plugin lives on.
//
// What was delivered may come again, with the same id, after a crash or where an answer came too late.
//
// # Concurrency of a sink
//
// The handler is called concurrently, as often as the sink's `concurrency` allows (16 unless configured) and at most as
// [Concurrency] says. Concurrency(1) calls it once at a time; `ordering` in the sink's configuration keeps what belongs
// to one container or hub in order. The handler's context ends with the attempt's time (the sink's `timeout`) and when
// the daemon wants the answer no more: a handler that goes on nevertheless is taken for hung some seconds later, and the
// plugin is killed and started anew.
//
// # Drivers
//
// A driver is a relay.Driver, whose comments say what is asked of it. What Migrate returns is all that the daemon knows of
// the instance: nil says that it is on the destination alone, a plain error that it is on the source as before, with a
// sentence on which a person can act. Everything between is marked by relay.Unsettled, and Migrate is called again later:
// the same at first, so that it may go on, and with Migration.Undo after it has failed so three times. A Migrate that panics
// is unsettled, and the plugin lives on. The error of a Configure names the server that is of no use; it is shown to the
// operator, and what was configured before stays.
//
// Methods are called concurrently, Migrate once at a time for each instance. Configure comes while migrations run; each
// Migration brings its own two servers with it. Describe comes first and Configure later, perhaps much later: until then
// the driver does nothing.
//
// The process may be killed at any moment, and the next one gets the same job again. So a driver looks at both servers
// before it does anything, and takes Migration.Done for a hint: a report may be missing, so a step that was done already is
// no mistake. Reports are sent as fast as the daemon takes them, of each step the latest.
//
// Several daemons may have a driver each, and one that stood still for an hour goes on where it was. Only the lease tells
// them apart: keep the highest one at both servers, beside the instance (a file, a label), set it by compare-and-swap
// before each step that cannot be undone, and return relay.ErrSuperseded where there is a higher one.
//
// The context of a Migrate ends when the daemon ends or wants to hand the job over. Return its error then, within ten
// seconds (hang_timeout) and in a state from which another call goes on; the plugin is killed otherwise, with all of its
// migrations. At the end of the daemon there is one second for that, and two more with Close and [OnStop].
//
// The plugin's process group is killed with it. What has to outlive the driver, such as an instance, is started in a
// session of its own (syscall.SysProcAttr{Setsid: true}), with its standard input, output and error elsewhere: those of the
// plugin end with it. It inherits the plugin's memory_limit. A service manager may still end it with the daemon; systemd
// does unless the unit says KillMode=process.
//
// # Configuration
//
// What the operator writes under `config` is decoded into the struct that [Config] names, by its `json` tags. Unknown keys are
// refused, and so is what the struct's Validate method (func() error) refuses: the operator reads the error in the daemon's log
// and in `hubrelay sinks list`. What needs the configuration, such as a file to open, is for [OnStart].
//
// The plugin is also started to find mistakes before they count, by `hubrelay config check` and before a daemon takes over a changed
// file: Validate is all that is called then, and [OnValidate]. So they may read files, but dial nobody and change nothing. Where
// Validate returns a *relay.FieldError, or several by errors.Join, the operator is shown the line of each: Field is the key, with
// those above it before dots.
//
// # What a sink sends
//
// `hubrelay sinks explain` shows for an event what the function says that [Explain] names, and without it what the plugin is given.
//
// The plugin runs in the folder of the daemon's configuration file, where relative paths begin, and its environment has
// nothing of the daemon's but what the setting `env` names.
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
// is killed, the handlers' contexts end and ServeSink returns, so that no plugin is left behind. A driver's migrations are
// stopped before, and its Close is called last.
//
// # Test
//
// `hubrelay plugins check PROGRAM` says whether a program does all that is asked of a plugin, and package plugins/plugintest
// makes a test of the same. `hubrelay plugins new` writes the beginning of a plugin with such a test.
//
// Nothing of the daemon may come in here: what is imported here, every plugin is built with.
package sdk
