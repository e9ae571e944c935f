package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/plugins/plugintest"
)

func newPlugins(std term.Streams, build Build) *cobra.Command {
	return command.NewGroup("plugins", "Create and check plugins", newPluginsNew(std, build), newPluginsCheck(std))
}

type pluginsCheck struct {
	kind    string
	config  string
	env     []string
	noTLS   bool
	timeout time.Duration
	verbose bool
	command.Output
}

func newPluginsCheck(std term.Streams) *cobra.Command {
	var o pluginsCheck
	cmd := &cobra.Command{
		Use:   "check [flags] COMMAND [ARGUMENT...]",
		Short: "Check a plugin",
		Long: `Starts a program as the relay would, and checks that it implements the plugin protocol: startup,
responses and shutdown. The program may be written in any language. The check detects whether it is a sink or a
migration driver. A sink receives samples, so use a configuration for a test destination. A driver receives requests
for migrations between servers that do not exist.

All arguments after the command belong to the program, even if they look like flags.`,
		Example: `  hubrelay plugins check --config '{"report":"/tmp/report.jsonl"}' ./watcher
  hubrelay plugins check --no-tls python3 plugin.py`,
		Args: command.NamedArgs(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, std, args) },
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&o.kind, "kind", "", "kind of the plugin, sink or driver; by default, the plugin is started once "+
		"more to detect it")
	flags.StringVar(&o.config, "config", "{}", "configuration of the plugin, a JSON object")
	flags.StringArrayVar(&o.env, "env", nil, "NAME=value for the environment of the plugin, which is empty "+
		"otherwise; may be repeated")
	flags.BoolVar(&o.noTLS, "no-tls", false, "for a plugin without TLS, like tls: false in the configuration")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "time limit of the start and of each response")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "print the standard error of the plugin")
	o.Register(flags)
	return cmd
}

func (p *pluginsCheck) run(cmd *cobra.Command, std term.Streams, program []string) error {
	var config map[string]any
	if err := json.Unmarshal([]byte(p.config), &config); err != nil {
		return command.NewUsageError(cmd, fmt.Errorf("--config is not a JSON object: %w", err))
	}
	if p.kind != "" && p.kind != host.KindSink && p.kind != host.KindDriver {
		return command.NewUsageError(cmd, fmt.Errorf("unknown --kind %s: choose %s or %s", p.kind, host.KindSink,
			host.KindDriver))
	}
	log := slog.DiscardHandler
	if p.verbose {
		log = slog.NewTextHandler(std.Err, nil)
	}
	var failed error
	paint, list := term.NewPalette(std.Out, std.Env), p.NewList(std.Out)
	plugin := plugintest.Plugin{
		Kind: p.kind, Command: program, Env: p.env, Config: json.RawMessage(p.config), PlainSocket: p.noTLS,
		StartupTimeout: p.timeout, Timeout: p.timeout, Log: slog.New(log),
	}
	var err error
	if plugin.Kind, err = plugintest.KindOf(cmd.Context(), plugin); err != nil {
		return err
	}
	good := plugintest.Check(cmd.Context(), plugin, func(r plugintest.Result) {
		verdict, reason := "ok", ""
		switch {
		case r.Err != nil && r.Advice:
			verdict, reason = "advice", r.Err.Error()
		case r.Err != nil:
			verdict, reason = "failed", r.Err.Error()+hintFor(r.Err)
		}
		var err error
		if !p.IsTable() {
			err = list.Write(map[string]string{"check": r.Name, "result": verdict, "reason": reason})
		} else {
			err = printCheck(std, paint, verdict, r.Name, reason)
		}
		failed = errors.Join(failed, err)
	})
	failed = errors.Join(failed, list.Close())
	if failed != nil {
		return failed
	}
	if !good {
		return fmt.Errorf("the plugin failed the checks of a %[1]s; --verbose shows its output, "+
			"plugins/proto/%[1]s/v1/%[1]s.proto describes the protocol", plugin.Kind)
	}
	return nil
}

// hintFor returns the flag that replaces the setting in err, or "".
func hintFor(err error) string {
	switch {
	case host.IsRejected(err):
		return " (here: --config)"
	case errors.Is(err, host.ErrNoCertificate):
		return " (here: --no-tls)"
	}
	return ""
}

func printCheck(std term.Streams, paint term.Palette, verdict, name, reason string) error {
	mark := paint.Green("ok    ")
	switch verdict {
	case "advice":
		mark = paint.Yellow("advice")
	case "failed":
		mark = paint.Red("failed")
	}
	_, err := fmt.Fprintf(std.Out, "%s  %s\n", mark, name)
	if reason != "" && err == nil {
		_, err = fmt.Fprintf(std.Out, "        %s\n", term.Sanitize(reason))
	}
	return err
}
