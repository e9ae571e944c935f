package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/spf13/cobra"
)

// configFlag registers -c, which every command that reads a configuration takes.
func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration file")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *file == "" {
			return NewUsageError(cmd, errors.New("a configuration is needed: give -c FILE"))
		}
		return nil
	}
}

func newServe(std term.Streams, build Build) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the relay",
		Long: `Runs the relay until SIGTERM or an interrupt, then ends what is running within server.shutdown_grace.

Without redis.url it runs a redis-server of its own in redis.data_dir.`,
		Args: WithUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Whoever reads the log may go away, as journald does when it restarts; that must not end the daemon.
			signal.Ignore(syscall.SIGPIPE)
			tuneGC(std)
			reload := daemon.NewReloadSource(file, func() (*daemon.Config, error) {
				return daemon.LoadConfig(file, std.Env, build.Kinds)
			})
			cfg, err := loadConfig(std, build, file)
			if err != nil {
				return err
			}
			reload.WatchInventory(cfg.Migration.InventoryFile)
			inventory, err := loadInventory(std, cfg.Migration.InventoryFile)
			if err != nil {
				return err
			}
			level := new(slog.LevelVar)
			setLevel(level, cfg.Log.Level)
			log := newLogger(std, cfg.Log.Format, level)
			for _, w := range cfg.Warnings {
				log.Warn("configuration", "warning", w.String())
			}
			reload.Requested, reload.SetLogLevel = reloadSignals(cmd.Context()), func(name string) {
				setLevel(level, name)
			}
			relayed, err := daemon.New(cfg, daemon.Settings{
				Version: build.Version, Log: log, SinkKinds: build.Kinds.Sinks, Driver: build.Kinds.Driver, Inventory: inventory,
				Reload: reload,
				Ready: func(a daemon.Addresses) {
					log.Info("serving", "public", a.Public.String(), "health", a.Health.String(), "admin",
						a.Admin.String(),
						"redis", cfg.Redis.Address(), "sinks", len(cfg.Sinks), "keys", len(
							cfg.Auth.Keys), "version", build.Version)
				},
			})
			if err != nil {
				return err
			}
			return relayed.Run(cmd.Context())
		},
	}
	configFlag(cmd, &file)
	return cmd
}

// gcPercent lets the heap grow to four times what is in use before it is collected. Little is in use and a notification
// leaves more than a KiB of garbage: the queues are read a fifth faster than with Go's 100, for a few MiB.
const gcPercent = 300

// tuneGC sets gcPercent unless GOGC says otherwise.
func tuneGC(std term.Streams) {
	if std.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// reloadSignals passes on SIGHUP, which has the configuration read again, until ctx ends; behind that it does nothing
// any more.
func reloadSignals(ctx context.Context) <-chan struct{} {
	signals, asked := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}()
	return asked
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
