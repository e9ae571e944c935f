package daemon

import (
	"context"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/audit"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// startAudit starts to write the audit log to Redis.
func (a *Daemon) startAudit(ctx context.Context, p *components, s *stores) {
	var store audit.Appender
	if n := a.cfg.Audit.MaxLen; n > 0 {
		inRedis := audit.NewStore(s.conn, n)
		a.auditStore.Store(inRedis)
		store = inRedis
	}
	p.startComponent(ctx, "audit log", func(ctx context.Context) error { return a.audit.RunStore(ctx, store) })
}

// adminAudit returns nil while the daemon is starting.
func (a *Daemon) adminAudit() adminserver.AuditLog {
	switch store := a.auditStore.Load(); {
	case store != nil:
		return store
	case a.cfg.Audit.MaxLen == 0:
		return noAuditStore{}
	default:
		return nil
	}
}

// noAuditStore rejects searches if Redis keeps no entries.
type noAuditStore struct{}

func (noAuditStore) Search(context.Context, audit.Filter) ([]audit.Entry, error) {
	return nil, relay.NewError(relay.CodeNotEnabled, "audit.max_len is 0, so Redis keeps no entries: see audit.file")
}

const (
	// configurationActor is the actor of changes in files.
	configurationActor = "configuration"
	// relayActor is the actor of decisions of the relay.
	relayActor = "relay"
)

// recordSecretFiles records that key files have changed.
func (a *Daemon) recordSecretFiles(target string) {
	a.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadKeys, Target: target, Outcome: audit.OutcomeOK,
	})
}

// recordDisabledSink records that the relay has disabled a sink.
func (a *Daemon) recordDisabledSink(sink, reason string) {
	a.audit.Record(audit.Entry{
		Actor: relayActor, Action: audit.ActionDisableSink, Target: sink, Outcome: audit.OutcomeOK, Detail: reason,
	})
}

// recordRejected records a rejected configuration.
func (a *Daemon) recordRejected(problems string) {
	a.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadConfig, Outcome: audit.OutcomeRejected,
		Detail: problems,
	})
}

// recordReload records an accepted configuration with its differences, and the changes of its keys.
func (a *Daemon) recordReload(before, after *config.Config) {
	keys := config.DiffKeys(before, after)
	list := listDifferences(config.DiffSinks(before, after), keys)
	if names := config.RestartRequired(before, after); len(names) > 0 {
		list = append(list, difference{"settings that require a restart", names})
	}
	detail := make([]string, len(list))
	for i, d := range list {
		detail[i] = d.title + ": " + strings.Join(d.names, ", ")
	}
	a.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadConfig, Outcome: audit.OutcomeOK,
		Detail: strings.Join(detail, "; "),
	})
	for action, names := range map[audit.Action][]string{
		audit.ActionAddKey: keys.Added, audit.ActionChangeKey: keys.Changed, audit.ActionRemoveKey: keys.Removed,
	} {
		for _, name := range names {
			a.audit.Record(audit.Entry{
				Actor: configurationActor, Action: action, Target: name,
				Outcome: audit.OutcomeOK,
			})
		}
	}
}
