package config

import "time"

func (l *loader) checkMigration(m *Migration) {
	checkRange(l, "migration.server_concurrency", m.ServerConcurrency, 1, 1024)
	checkRange(l, "migration.expire_after", m.ExpireAfter, time.Second, 365*24*time.Hour)
	checkRange(l, "migration.stall_timeout", m.StallTimeout, 10*time.Second, 365*24*time.Hour)
	switch {
	case !m.Driver.IsSet():
		if m.InventoryFile != "" {
			l.Warn("migration.inventory_file", "is of no use without a driver", "give migration.driver a command")
		}
		return
	case m.InventoryFile == "":
		l.Warn("migration.driver", "has no inventory_file beside it, so there are no servers", "name one, such as a copy of configs/inventory.yaml")
	}
	if !l.HasErrors("migration.driver") { // a setting that could not be read would seem to be missing
		l.checkSettings("migration.driver", m.Driver.Settings)
	}
}
