package daemon

import (
	"context"

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

// configurationActor is the actor of changes in files.
const configurationActor = "configuration"

// recordSecretFiles records that key files have changed.
func (a *Daemon) recordSecretFiles(target string) {
	a.audit.Record(audit.Entry{
		Actor: configurationActor, Action: audit.ActionReloadKeys, Target: target, Outcome: audit.OutcomeOK,
	})
}

// recordReload records an accepted or rejected configuration, and the changes of its keys.
func (a *Daemon) recordReload(before, after *config.Config, err error) {
	if err != nil {
		a.audit.Record(audit.Entry{Actor: configurationActor, Action: audit.ActionReloadConfig, Outcome: "rejected"})
		return
	}
	a.audit.Record(audit.Entry{Actor: configurationActor, Action: audit.ActionReloadConfig, Outcome: audit.OutcomeOK})
	keys := config.DiffKeys(before, after)
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
