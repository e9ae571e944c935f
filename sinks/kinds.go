// Package sinks lists the kinds of sinks that hubrelay has.
package sinks

import (
	"os"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/email"
	"github.com/hubrelay/hubrelay/sinks/exec"
	"github.com/hubrelay/hubrelay/sinks/file"
	"github.com/hubrelay/hubrelay/sinks/pagerduty"
	"github.com/hubrelay/hubrelay/sinks/plugin"
	"github.com/hubrelay/hubrelay/sinks/slack"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

// Kinds returns every kind of sink. CONTRIBUTING.md lists the steps to add one. The sink type stdout writes to
// stdout, and builtins names the plugins that the program itself contains.
func Kinds(stdout *os.File, builtins ...string) []relay.SinkKind {
	return []relay.SinkKind{
		webhook.Kind(),
		slack.Kind(),
		file.Kind(),
		file.Stdout(stdout),
		exec.Kind(),
		email.Kind(),
		pagerduty.Kind(),
		plugin.Kind(builtins...),
	}
}
