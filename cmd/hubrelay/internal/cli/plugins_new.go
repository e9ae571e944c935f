package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

func newPluginsNew(std term.Streams, build Build) *cobra.Command {
	p := setup.Plugin{Version: build.ModuleVersion}
	cmd := &cobra.Command{
		Use:   "new NAME --lang LANGUAGE",
		Short: "Create a new plugin with a test",
		Long: `Writes a working plugin to the directory NAME: a sink that logs each event, its test, a
configuration to try it with, and a README. A plugin in Go requires the Go module of this version of hubrelay. If this
version is not a release, use --replace with a directory that contains its source.`,
		Example: `  hubrelay plugins new instance-watch --lang go
  hubrelay plugins new instance-watch --lang go --replace ~/src/hubrelay
  hubrelay plugins new instance-watch --lang python`,
		Args: command.ExactNamedArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = args[0]
			return runPluginsNew(cmd, std, &p)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.Language, "lang", "", "the plugin's language: "+strings.Join(setup.PluginLanguages(), " or "))
	flags.StringVar(&p.Replace, "replace", "", "directory with the source of hubrelay, for a plugin in Go")
	return cmd
}

func runPluginsNew(cmd *cobra.Command, std term.Streams, p *setup.Plugin) error {
	if p.Language == "" {
		return command.NewUsageError(cmd, fmt.Errorf("--lang is required: %s", strings.Join(setup.PluginLanguages(), " or ")))
	}
	if err := p.Validate(); errors.Is(err, setup.ErrNoRelease) {
		return command.NewUsageError(cmd, fmt.Errorf("%w (--replace DIR, for example the clone that this program was built "+
			"from)", err))
	} else if err != nil {
		return command.NewUsageError(cmd, err)
	}
	if err := p.Write("."); err != nil {
		return err
	}
	next := []string{"go mod tidy", "go test ./...", "go build -o " + p.Name + " .", "hubrelay plugins check ./" +
		p.Name}
	if p.Language == "python" {
		next = []string{"/usr/bin/python3 -m unittest", "hubrelay plugins check --no-tls /usr/bin/python3 plugin.py"}
	}
	_, err := fmt.Fprintf(std.Out,
		"The directory %[1]s contains a working plugin and a README. Next:\n\n  cd %[1]s\n  "+
			"%[2]s\n", p.Name, strings.Join(next, "\n  "))
	return err
}
