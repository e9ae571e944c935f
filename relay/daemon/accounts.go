package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/erase"
)

// openAccounts returns nil while the daemon is starting.
func (a *Daemon) openAccounts() adminserver.Accounts {
	if o := a.operations.Load(); o != nil {
		return o
	}
	return nil
}

// Erase implements [adminserver.Accounts].
func (o *sinkAdmin) Erase(ctx context.Context, account string) (erase.Result, error) {
	sinks, err := o.sinkNames(ctx)
	if err != nil {
		return erase.Result{}, err
	}
	result, err := erase.Account(ctx, erase.Options{
		Conn: o.stores.conn, Store: o.store, Group: consumerGroup, Sinks: sinks, RewriteFile: o.redis.URL == "",
	}, account)
	result.Remaining = o.describeRemaining()
	return result, err
}

// describeRemaining describes data of an erased account that the relay does not delete.
func (o *sinkAdmin) describeRemaining() []string {
	list := []string{
		"deliveries in progress and open batches: repeat the command after they have ended",
		"recent events in the memory of nodes: newer events replace them, and a restart deletes them",
		"its migrations, and its containers in the inventory",
		"entries of the audit log that name the account",
	}
	var files []string
	for _, s := range o.sinks.all() {
		if slices.Contains([]string{"file", "stdout", "exec", "plugin"}, s.cfg.Type) {
			files = append(files, fmt.Sprintf("%s (%s)", s.name, s.cfg.Type))
		}
	}
	if len(files) > 0 {
		list = append(list, "data that sinks wrote to files, programs and brokers: "+strings.Join(files, ", "))
	}
	switch o.redis.URL {
	case memoryURL:
	case "":
		list = append(list, "backups of the data directory")
	default:
		list = append(list, "the append-only files and snapshots of Redis and its replicas, until Redis rewrites them: run "+
			"BGREWRITEAOF and BGSAVE on each server; and their backups")
	}
	return list
}
