package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// initFlags are the flags of init.
type initFlags struct {
	file, listen, redis string
	sinks               []string
	force, yes, asJSON  bool
}

func newInit(std streams, build Build) *cobra.Command {
	var f initFlags
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a first configuration: a few questions, or flags",
		Long: `Writes a configuration with comments, checked as serve would, and a new API key in it, of which it holds only the
SHA-256. In a terminal it asks what the flags leave open; elsewhere, and with --yes, the defaults stand.

--sink names a destination: its type, then its settings as configs/hubrelay.yaml explains them, with commas between. One
inside of another is written with a dot, as batch.max=5; what is given twice is a list. A webhook without secrets gets one. Secrets are better written as ${NAME}, which
is filled from the daemon's environment, or named by a file (url_file=…): other users of this machine can see flags.`,
		Example: `  hubrelay init
  hubrelay init --yes --sink 'webhook,url=https://example.com/hook,topics=billing.*,topics=!*.updated'
  hubrelay init --yes --sink 'webhook,url=https://example.com/hook,batch.wait=1s,batch.max=50,retry.schedule=5s,retry.schedule=5m'
  hubrelay init --yes --redis redis://redis:6379 --listen :8080 --sink 'slack,url=${SLACK_URL},topics=*.error'`,
		Args: withUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runInit(cmd, std, build, &f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "config", "c", "hubrelay.yaml", "the file to write")
	flags.StringVar(&f.listen, "listen", defaultListen, "address for clients and producers, host:port")
	flags.StringVar(&f.redis, "redis", "", "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://; empty for a redis-server of its own")
	flags.StringArrayVar(&f.sinks, "sink", nil, "a destination: TYPE,KEY=VALUE,…; may be repeated")
	flags.BoolVar(&f.force, "force", false, "write over a file that is there")
	flags.BoolVarP(&f.yes, "yes", "y", false, "ask nothing")
	flags.BoolVar(&f.asJSON, "json", false, "ask nothing, and print a JSON line")
	return cmd
}

func runInit(cmd *cobra.Command, std streams, build Build, f *initFlags) error {
	if _, err := os.Lstat(f.file); err == nil && !f.force {
		return &existsError{f.file}
	}
	draft := newInitConfig(initOptions{
		file: f.file, listen: f.listen, redis: f.redis, force: f.force, version: build.Version, kinds: build.Kinds,
	})
	for _, text := range f.sinks {
		if err := draft.addSinkFlag(text); err != nil {
			return newUsageError(cmd, fmt.Errorf("--sink %q: %w", withoutValues(text), err))
		}
	}
	if in, ok := std.in.(*os.File); ok && isTerminal(in) && !f.yes && !f.asJSON {
		if err := draft.ask(cmd.Context(), std, in, cmd.Flags().Changed); err != nil {
			return err
		}
	}
	warnings, err := draft.write(std.env)
	if err != nil {
		return printProblems(std, err)
	}
	if f.asJSON {
		return json.NewEncoder(std.out).Encode(map[string]string{"file": f.file, "key": draft.key})
	}
	for _, w := range warnings {
		_, _ = fmt.Fprintf(std.err, "warning: %s\n", w)
	}
	return draft.printNextSteps(std)
}
