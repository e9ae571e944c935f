package main

import (
	"os"

	"github.com/hubrelay/hubrelay/plugins/settings"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/config"
	"github.com/hubrelay/hubrelay/sinks/email"
	"github.com/hubrelay/hubrelay/sinks/exec"
	"github.com/hubrelay/hubrelay/sinks/file"
	"github.com/hubrelay/hubrelay/sinks/pagerduty"
	"github.com/hubrelay/hubrelay/sinks/plugin"
	"github.com/hubrelay/hubrelay/sinks/slack"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

// sinkKinds is the list of every kind of sink that the daemon knows. A new kind is one folder and one line here.
func sinkKinds() []relay.SinkKind {
	return []relay.SinkKind{
		webhook.Kind(),
		slack.Kind(),
		file.Kind(),
		file.Stdout(os.Stdout),
		exec.Kind(),
		email.Kind(),
		pagerduty.Kind(),
		plugin.Kind(builtinNames()...),
	}
}

// configKinds is what a configuration may lead to.
func configKinds() config.Kinds {
	return config.Kinds{Sinks: sinkKinds(), Driver: settings.DriverKind(builtinNames()...)}
}
