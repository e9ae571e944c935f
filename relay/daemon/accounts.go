package daemon

import (
	"context"
	"strings"

	"github.com/hubrelay/hubrelay/relay/internal/delivery"
	"github.com/hubrelay/hubrelay/relay/internal/erase"
)

// accounts implements [adminserver.Accounts].
type accounts struct {
	redisURL   string
	stores     *stores
	deliveries *delivery.Service
}

// Erase implements [adminserver.Accounts].
func (a accounts) Erase(ctx context.Context, account string) (erase.Result, error) {
	sinks, err := a.deliveries.SinkNames(ctx)
	if err != nil {
		return erase.Result{}, err
	}
	result, err := erase.Account(ctx, erase.Options{
		Conn: a.stores.conn, Store: a.stores.deliveries, History: a.stores.history, Group: delivery.ConsumerGroup, Sinks: sinks,
		RewriteFile: a.redisURL == "",
	}, account)
	result.Remaining = a.describeRemaining()
	return result, err
}

// describeRemaining describes data of an erased account that the relay does not delete.
func (a accounts) describeRemaining() []string {
	list := []string{
		"attempts in progress: repeat the command after they have ended",
		"bytes of deleted events next to events of others in the memory of Redis, which no command returns: they disappear with " +
			"redis.retention",
		"recent events in the memory of nodes: newer events replace them, and a restart deletes them",
		"its migrations, and its containers in the inventory",
		"entries of the audit log that name the account",
	}
	if files := a.deliveries.SinksOfTypes("file", "stdout", "exec", "plugin"); len(files) > 0 {
		list = append(list, "data that sinks wrote to files, programs and brokers: "+strings.Join(files, ", "))
	}
	switch a.redisURL {
	case memoryURL:
	case "":
		list = append(list, "backups of the data directory")
	default:
		list = append(list, "the append-only files and snapshots of Redis and its replicas, until Redis rewrites them: run "+
			"BGREWRITEAOF and BGSAVE on each server; and their backups")
	}
	return list
}
