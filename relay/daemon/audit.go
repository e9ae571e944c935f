package daemon

import (
	"strings"

	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

const (
	// configurationActor is the actor of changes in files.
	configurationActor = "configuration"
	// relayActor is the actor of decisions of the relay.
	relayActor = "relay"
)

// recordSecretFiles records that key files have changed.
func (d *Daemon) recordSecretFiles(target string) {
	d.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadKeys, Target: target, Result: audit.ResultOK,
	})
}

// recordDisabledSink records that the relay has disabled a sink.
func (d *Daemon) recordDisabledSink(sink, reason string) {
	d.audit.Record(audit.Entry{
		Actor: relayActor, Action: audit.ActionDisableSink, Target: sink, Result: audit.ResultOK, Detail: reason,
	})
}

// recordRejected records a rejected configuration.
func (d *Daemon) recordRejected(problems string) {
	d.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadConfig, Result: audit.ResultRejected,
		Detail: problems,
	})
}

// recordReload records an accepted configuration with its differences, and the changes of its keys.
func (d *Daemon) recordReload(before, after *config.Config) {
	keys := config.DiffKeys(before, after)
	list := listDifferences(config.DiffSinks(before, after), keys, config.DiffAdminTokens(before, after))
	if names := config.RestartRequired(before, after); len(names) > 0 {
		list = append(list, difference{"settings that require a restart", names})
	}
	detail := make([]string, len(list))
	for i, d := range list {
		detail[i] = d.title + ": " + strings.Join(d.names, ", ")
	}
	d.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadConfig, Result: audit.ResultOK,
		Detail: strings.Join(detail, "; "),
	})
	for action, names := range map[audit.Action][]string{
		audit.ActionAddKey: keys.Added, audit.ActionChangeKey: keys.Changed, audit.ActionRemoveKey: keys.Removed,
	} {
		for _, name := range names {
			d.audit.Record(audit.Entry{
				Actor: configurationActor, Action: action, Target: name,
				Result: audit.ResultOK,
			})
		}
	}
}
