package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/demo"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
)

// configFlag registers -c, which every command with a configuration requires.
func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration file")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *file == "" {
			return command.NewUsageError(cmd, errors.New("a configuration file is required: use -c FILE"))
		}
		return nil
	}
}

func newServe(std term.Streams, build Build) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the relay",
		Long: `Runs the relay until SIGTERM or an interrupt. It then finishes work in progress within
server.shutdown_grace.

It reads the configuration, and the files that it names, again within seconds after a change, or immediately after SIGHUP.
A change that cannot be applied is logged, and the previous configuration stays in use.

Without redis.url it runs an embedded redis-server in redis.data_dir.`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The reader of the log can exit, for example when journald restarts. This must not stop the daemon.
			signal.Ignore(syscall.SIGPIPE)
			requested := reloadSignals(cmd.Context()) // before the configuration is read, which may take a while
			tuneGC(std)
			reload := daemon.NewReloadSource(file, func() (*daemon.Config, error) {
				return daemon.LoadConfig(file, std.Env, build.Kinds)
			})
			cfg, err := loadConfig(std, build, file)
			if err != nil {
				return err
			}
			level := new(slog.LevelVar)
			setLevel(level, cfg.Log.Level)
			log := newLogger(std, cfg.Log.Format, level)
			redirectStandardLog(log)
			reload.Requested, reload.SetLogLevel = requested, func(name string) { setLevel(level, name) }
			relayed, err := daemon.New(cfg, daemon.Options{
				Version: build.Version, Log: log, Sinks: build.Kinds.Sinks, Driver: build.Kinds.Driver,
				Reload: reload, Stdout: std.Out,
				Ready: func(a daemon.Addresses) {
					log.Info("serving",
						"public_addr", a.Public.String(), "health_addr", a.Health.String(),
						"admin_addr", a.Admin.String(), "redis_addr", cfg.Redis.Address(),
						"sink_count", len(cfg.Sinks), "key_count", len(cfg.Auth.Keys),
						"version", build.Version)
				},
			})
			if err != nil {
				return command.PrintProblems(std, err)
			}
			for _, w := range cfg.Warnings {
				log.Warn("configuration has a warning", "warning", w.String())
			}
			return relayed.Run(cmd.Context())
		},
	}
	configFlag(cmd, &file)
	return cmd
}

// reloadSignals returns a channel that receives a value for each SIGHUP until ctx ends. A SIGHUP reloads the
// configuration. After ctx has ended, SIGHUP is ignored.
func reloadSignals(ctx context.Context) <-chan struct{} {
	signals, requests := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			select {
			case requests <- struct{}{}:
			default:
			}
		}
	}()
	return requests
}

func setLevel(level *slog.LevelVar, name string) {
	var l slog.Level
	_ = l.UnmarshalText([]byte(name)) // the configuration allows only names that parse
	level.Set(l)
}

// newLogger logs lines for people to a terminal, and JSON otherwise, unless the format is set.
func newLogger(std term.Streams, format string, level slog.Leveler) *slog.Logger {
	if format == "text" || format == "auto" && term.IsTerminal(std.Err) {
		return slog.New(term.NewLogHandler(std.Err, level, std.Env))
	}
	return slog.New(slog.NewJSONHandler(std.Err, &slog.HandlerOptions{Level: level, ReplaceAttr: formatDuration}))
}

// formatDuration writes durations as strings such as "1ms". The JSON handler would write nanoseconds.
func formatDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func newDemo(std term.Streams, build Build) *cobra.Command {
	o := demo.Options{Version: build.Version, Kinds: build.Kinds}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a relay with sample events, a client and a webhook receiver",
		Long: `Starts a relay on this machine with a temporary key, a webhook receiver, a websocket client and a steady
stream of sample events, and prints each event when it is published and received. It regularly moves an instance
between servers, which are local directories. It removes everything when it ends. If it was killed, the next demo cleans
up.`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Interval < time.Millisecond {
				return command.NewUsageError(cmd, errors.New("--every must be 1ms or more"))
			}
			return command.PrintProblems(std, demo.Run(cmd.Context(), std, o))
		},
	}
	cmd.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:8080", "public address; a free port if it is in use")
	cmd.Flags().StringVar(&o.Health, "health", "127.0.0.1:9090",
		"address of /healthz, /readyz and /metrics; a free port if it is in use")
	cmd.Flags().DurationVar(&o.Interval, "every", 700*time.Millisecond, "interval between sample events")
	return cmd
}
