package plugintest

import (
	"context"
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
	"golang.org/x/sync/errgroup"
)

// driver is a driver that is being checked.
type driver struct {
	*checkRun
	*host.Driver
}

func openDriver(p Plugin) (*checked, error) {
	r := newRun(p)
	d, err := host.NewDriver(r.hostOptions(p.Config))
	if err != nil {
		return nil, err
	}
	r.host = d
	c := &driver{r, d}
	return &checked{
		checkRun: r,
		first: check{
			"starts, is healthy, describes itself, and accepts its configuration without any servers",
			c.startsAndConfigures,
		},
		checks: []check{
			{
				"accepts servers with unknown settings, or rejects them with INVALID_ARGUMENT",
				c.rejectsUnknownServers,
			},
			{
				"fails a migration between such servers with a reason",
				func(ctx context.Context) error { return c.failsMigration(ctx, "1") },
			},
			{"answers 20 such migrations at once", c.answersConcurrentMigrations},
			{"accepts the cancellation of an ended migration, and of an unknown one", c.cancelsUnknown},
		},
	}, nil
}

func (d *driver) startsAndConfigures(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout())
	defer cancel()
	if _, err := d.Describe(ctx); err != nil {
		return err
	}
	return d.Configure(ctx, nil)
}

// unknownServer returns a server that no driver knows.
func unknownServer(id string) relay.Server {
	return relay.Server{ID: id, Cluster: "check", Settings: []byte(`{"a_key_that_hubrelay_made_up":true}`)}
}

func (d *driver) rejectsUnknownServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout())
	defer cancel()
	err := d.Configure(ctx, []relay.Server{unknownServer("server-1"), unknownServer("server-2")})
	if err == nil || host.IsRejected(err) {
		return nil
	}
	return fmt.Errorf("it neither accepts nor rejects them: %w", err)
}

// failsMigration checks that the driver reports that it moved nothing.
func (d *driver) failsMigration(ctx context.Context, job string) error {
	timeout := d.answerTimeout()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := d.Migrate(ctx, relay.Migration{
		JobID: "check-" + job, Lease: 1, Container: "check", Instance: "check-" + job, Hub: "check",
		Source: unknownServer("server-1"), Destination: unknownServer("server-2"),
	}, func(relay.Progress) {})
	switch {
	case err == nil:
		return errors.New("it reports that it moved an instance that does not exist, between unknown servers")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no result within %s", timeout)
	case !host.Answered(err):
		return fmt.Errorf("it returned no result: %w", err)
	case relay.IsIndeterminate(err):
		return fmt.Errorf(
			"it reports an unsettled migration, which is repeated forever; nothing was changed, so report a "+
				"failure: %w", err,
		)
	}
	return nil
}

func (d *driver) answersConcurrentMigrations(ctx context.Context) error {
	var calls errgroup.Group
	for i := range 20 {
		calls.Go(func() error { return d.failsMigration(ctx, fmt.Sprint("many-", i)) })
	}
	return calls.Wait()
}

func (d *driver) cancelsUnknown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout())
	defer cancel()
	if err := d.Cancel(ctx, "check-1", 1); err != nil {
		return err
	}
	return d.Cancel(ctx, "check-never", 7)
}
