package daemon

import (
	"context"

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
	return erase.Account(ctx, erase.Options{
		Conn: o.stores.conn, Store: o.store, Group: consumerGroup, Sinks: sinks,
	}, account)
}
