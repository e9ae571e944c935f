package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

// initFlags are the flags of init.
type initFlags struct {
	file, listen, redis string
	sinks               []string
	force, yes          bool
	command.Output
}

func newInit(std term.Streams, build Build) *cobra.Command {
	var f initFlags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a first configuration from answers or flags",
		Long: `Writes a commented configuration with a new API key. It checks the configuration as serve would, and
stores only the SHA-256 of the key. In a terminal it asks for all settings that no flag sets. Without a terminal, and
with --yes or -o other than table, it uses the defaults.

--sink adds a sink: its type, then its settings from configs/hubrelay.yaml, separated by commas. Write a nested
setting with a dot, as in batch.max=5. Repeat a setting to create a list. For a webhook without secrets, a secret is
generated. Write secrets as ${NAME}, which serve reads from its environment, or use a file (url_file=…), because other
users of this machine can see flags.`,
		Example: `  hubrelay init
  hubrelay init --yes --sink 'webhook,url=https://example.com/hook,topics=billing.*,topics=!*.updated'
  hubrelay init --yes --sink 'webhook,url=https://example.com/hook,batch.max=50,retry.schedule=5s,retry.schedule=5m'
  hubrelay init --yes --redis redis://redis:6379 --listen :8080 --sink 'slack,url=${SLACK_URL},topics=*.error'`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return runInit(cmd, std, build, &f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "config", "c", "hubrelay.yaml", "the file to write")
	flags.StringVar(&f.listen, "listen", setup.DefaultListen, "address for clients and producers, host:port")
	flags.StringVar(&f.redis, "redis", "", "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://; "+
		"empty for an embedded redis-server")
	flags.StringArrayVar(&f.sinks, "sink", nil, "a sink: TYPE,KEY=VALUE,…; may be repeated")
	flags.BoolVar(&f.force, "force", false, "overwrite an existing file")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask questions")
	f.Register(flags)
	return cmd
}

func runInit(cmd *cobra.Command, std term.Streams, build Build, f *initFlags) error {
	draft, err := setup.New(setup.Options{
		File: f.file, Listen: f.listen, Redis: f.redis, Force: f.force, Version: build.Version, Kinds: build.Kinds,
	})
	if err != nil {
		return err
	}
	for _, text := range f.sinks {
		if err := draft.AddSinkFlag(text); err != nil {
			return command.NewUsageError(cmd, fmt.Errorf("--sink %q: %w", setup.HideValues(text), err))
		}
	}
	if in, ok := std.In.(*os.File); ok && term.IsTerminal(in) && !f.yes && f.IsTable() {
		if err := draft.Ask(cmd.Context(), std, in, cmd.Flags().Changed); err != nil {
			return err
		}
	}
	warnings, err := draft.Write(std.Env)
	if err != nil {
		return command.PrintProblems(std, err)
	}
	if !f.IsTable() {
		return f.Print(std.Out, map[string]string{"file": f.file, "key": draft.Key})
	}
	for _, w := range warnings {
		_, _ = fmt.Fprintf(std.Err, "warning: %s\n", w)
	}
	return draft.PrintNextSteps(std)
}
