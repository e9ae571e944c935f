package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/setup"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/spf13/cobra"
)

func newPluginsNew(std term.Streams, build Build) *cobra.Command {
	p := setup.Plugin{Version: build.ModuleVersion}
	cmd := &cobra.Command{
		Use:   "new NAME --lang LANGUAGE",
		Short: "Write the beginning of a plugin, with a test, into a new folder",
		Long: `Writes a plugin that works into the folder NAME: a sink that logs each notification, its test, a configuration to try it
with, and a README that says how. A plugin in Go needs the module of this hubrelay's version; where this one is not a
release, --replace names a folder with its source.`,
		Example: `  hubrelay plugins new instance-watch --lang go
  hubrelay plugins new instance-watch --lang go --replace ~/src/hubrelay
  hubrelay plugins new instance-watch --lang python`,
		Args: WithUsageErrors(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name = args[0]
			return runPluginsNew(cmd, std, &p)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.Language, "lang", "", "the plugin's language: "+strings.Join(setup.PluginLanguages(), " or "))
	flags.StringVar(&p.Replace, "replace", "", "a folder with the source of hubrelay, to build a plugin in Go with")
	return cmd
}

func runPluginsNew(cmd *cobra.Command, std term.Streams, p *setup.Plugin) error {
	if p.Language == "" {
		return NewUsageError(cmd, fmt.Errorf("--lang is needed: %s", strings.Join(setup.PluginLanguages(), " or ")))
	}
	if err := p.Validate(); errors.Is(err, setup.ErrNoRelease) {
		return NewUsageError(cmd, fmt.Errorf("%w (--replace DIR; the clone that it was built from will do)", err))
	} else if err != nil {
		return NewUsageError(cmd, err)
	}
	if err := p.Write("."); err != nil {
		return err
	}
	next := []string{"go mod tidy", "go test ./...", "go build -o " + p.Name + " .", "hubrelay plugins check ./" +
		p.Name}
	if p.Language == "python" {
		next = []string{"/usr/bin/python3 -m unittest", "hubrelay plugins check --no-tls /usr/bin/python3 plugin.py"}
	}
	_, err := fmt.Fprintf(std.Out, "The folder %[1]s has a plugin that works, and a README. Next:\n\n  cd %[1]s\n  "+
		"%[2]s\n", p.Name, strings.Join(next, "\n  "))
	return err
}
