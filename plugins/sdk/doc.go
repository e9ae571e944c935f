// Package sdk contains what authors of plugins need besides package relay. A plugin is a main function that calls
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
// A handler makes one attempt and never retries. It returns nil once it has taken responsibility for the notification.
// A plain error is retried on the sink's schedule. relay.RetryAfter sets the earliest time, relay.Permanent makes the
// delivery a dead letter, and relay.Gone disables the sink, which keeps its backlog. The text of an error is logged and
// stored, so it must not contain a secret. If a handler panics, the attempt fails and the plugin continues.
//
// A delivery may arrive again with the same ID, after a crash or a late response.
//
// # Concurrency of a sink
//
// The handler is called concurrently, up to the sink's `concurrency` (default 16) and up to [Concurrency].
// Concurrency(1) serializes all calls. The setting `ordering` of the sink keeps the order of a container or hub. The
// handler's context ends with the attempt (the sink's `timeout`), or when the daemon does not need the response. If a
// handler continues for some seconds after that (`hang_timeout`), and no other one ends or half of them continue, the plugin
// counts as hung and is restarted.
//
// # Drivers
//
// A driver implements relay.Driver, whose comments define its contract. The result of Migrate is all that the daemon
// knows about the instance. nil means that it is only on the destination. A plain error means that it is on the source
// as before; its text tells a person what to do. relay.Indeterminate marks any other outcome, and Migrate is called again
// later, first to continue, and with Migration.Undo after three failures. If Migrate panics, the outcome is indeterminate
// and the plugin continues. An error of Configure names the server that cannot be used. The operator sees it, and the
// previous configuration stays.
//
// Methods are called concurrently, but Migrate only once at a time per instance. Configure may be called during
// migrations, because each Migration contains its two servers. Describe is called first, and Configure later, perhaps
// much later. Until then the driver does nothing.
//
// The process may be killed at any moment, and the next one receives the same job. So a driver looks at both servers
// before it does anything, and uses Migration.Done only as a hint: a report may be missing, so a step that is already
// done is not an error. Reports are sent as fast as the daemon accepts them, the latest of each step.
//
// Several daemons may have a driver, and a process that was frozen for an hour continues where it was. Only the lease
// tells them apart. Keep the highest lease at both servers, next to the instance (a file, a label), set it by
// compare-and-swap before each irreversible step, and return relay.ErrSuperseded if there is a higher one.
//
// The context of Migrate ends when the daemon stops, hands the job over, or an operator cancels the job. After a
// cancellation, the next call has Migration.Undo. Return the error of the context within ten seconds (hang_timeout), in
// a state from which another call can continue. Otherwise the plugin is killed with all of its migrations. At the end of
// the daemon the limit is one second, and two more for Close and [OnStop].
//
// The plugin's process group is killed with it. Start a process that must survive the driver, such as an instance, in
// its own session (syscall.SysProcAttr{Setsid: true}) with its own standard input, output and error, because the
// plugin's are closed. It inherits the plugin's memory_limit. A service manager may still end it with the daemon.
// systemd does so unless the unit contains KillMode=process.
//
// # Configuration
//
// The `config` of the sink or driver is decoded into the struct that is given to [Config], by its `json` tags. Unknown
// keys are rejected, and so are values that the struct's Validate method (func() error) rejects. The operator sees the
// error in the daemon's log and in `hubrelay sinks list`. Open files or connections in [OnStart].
//
// The plugin is also started to check a configuration, by `hubrelay config check` and before a reload. Only Validate
// and [OnValidate] are called then. They may read files, but must not connect or change anything. If Validate returns a
// *relay.FieldError, or several by errors.Join, the operator sees the line of each. Field is the key, after its parents
// and dots.
//
// # Explanations
//
// `hubrelay sinks explain` shows the result of the function given to [Explain]. Without it, the command shows the input
// of the plugin.
//
// The plugin runs in the directory of the daemon's configuration file. Its environment contains only the variables of
// the setting `env`.
//
// # Log
//
// slog's default logger and package log write to the daemon's log, with their level and the sink's name. So do lines on
// standard output and standard error.
//
// # Shutdown
//
// When the daemon stops, or the sink is removed, no more deliveries arrive. Running ones may end, then the function
// given to [OnStop] is called, and ServeSink returns. All of this may take three seconds, then the process is killed.
// If the daemon is killed, the handlers' contexts end and ServeSink returns, so no plugin is left. A driver's
// migrations are stopped first, and its Close is called last.
//
// # Tests
//
// `hubrelay plugins check PROGRAM` checks whether a program is a correct plugin. Package plugins/plugintest runs the
// same checks in a test. `hubrelay plugins new` writes the start of a plugin with such a test.
//
// Do not import packages of the daemon here: every plugin is built with the imports of this package.
package sdk
