package config

import (
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func (l *loader) checkMigration(m *Migration) {
	checkRange(l, "migration.server_concurrency", m.ServerConcurrency, 1, 1024)
	checkRange(l, "migration.expire_after", m.ExpireAfter, time.Second, 365*24*time.Hour)
	checkRange(l, "migration.stall_timeout", m.StallTimeout, 10*time.Second, 365*24*time.Hour)
	switch {
	case !m.Driver.IsSet:
		if m.InventoryFile != "" {
			l.Warn("migration.inventory_file", "has no effect without a driver", "set the command of migration.driver")
		}
		return
	case m.InventoryFile == "":
		l.Warn("migration.driver", "has no migration.inventory_file, so there are no servers",
			"name one, such as a copy of configs/inventory.yaml")
	}
	if !l.HasErrors("migration.driver") { // After an error in the form, a key would seem to be missing.
		l.checkSettings("migration.driver", m.Driver.Settings, relay.CheckEnv{Name: "driver", Dir: l.dir})
	}
}
