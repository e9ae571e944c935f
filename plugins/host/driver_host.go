package host

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// Driver runs one plugin that is a driver, and is a [relay.Driver]: it starts the process when it is needed or by Start,
// and again whenever it has died, until Close. Its methods may be called concurrently.
//
// What the plugin itself did not answer, because it died, hung or does not run, is an error marked by [relay.Indeterminate]:
// nobody knows how far it came, and Migrate has to be called again.
type Driver struct {
	*supervisor
	inventory *serverList

	configureMu sync.Mutex // held by one Configure
}

var _ relay.Driver = (*Driver)(nil)

// NewDriver returns the host of one driver. It starts nothing, and does not look at the program.
func NewDriver(o Options) (*Driver, error) {
	d := &Driver{inventory: &serverList{}}
	s, err := newSupervisor(o, driverKind{d.inventory})
	if err != nil {
		return nil, err
	}
	d.supervisor = s
	return d, nil
}

// Describe tells what the driver is. It starts the plugin where it does not run.
func (d *Driver) Describe(ctx context.Context) (relay.DriverDescription, error) {
	l, err := d.currentCalls(ctx)
	if err != nil {
		return relay.DriverDescription{}, err
	}
	return l.description, nil
}

// Configure tells the driver which servers there are, now and whenever it is started again. Where it refuses them, those
// of before stay; where it cannot be told now, it is told once it can.
func (d *Driver) Configure(ctx context.Context, servers []relay.Server) error {
	d.configureMu.Lock()
	defer d.configureMu.Unlock()
	list := wire.FromServers(servers)
	before := d.inventory.set(&list)
	err := d.callWithRetry(ctx, func(l *migrationCalls) error { return l.configureDriver(ctx) })
	if IsRejected(err) {
		d.inventory.set(before)
	}
	return err
}

// Migrate moves an instance, as [relay.Driver] says. When ctx ends, the driver is told to stop; one that does not within
// HangTimeout is killed.
func (d *Driver) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	err := d.callWithRetry(ctx, func(l *migrationCalls) error { return l.runMigration(ctx, m, report) })
	var unheard *notDeliveredError
	switch {
	case !errors.As(err, &unheard):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the driver: %w", ctx.Err())
	}
	return relay.Indeterminate(err)
}

// callWithRetry has do ask the plugin that runs, and once more where that has ended before it heard of anything.
func (d *Driver) callWithRetry(ctx context.Context, do func(*migrationCalls) error) error {
	for again := true; ; again = false {
		l, err := d.currentCalls(ctx)
		if err != nil {
			return &notDeliveredError{err}
		}
		var unheard *notDeliveredError
		if err = do(l); !again || !errors.As(err, &unheard) {
			return err
		}
	}
}

// Cancel tells the driver to stop a migration. One that does not run, any more or at all, is no mistake. Whoever has called
// Migrate ends its context instead.
func (d *Driver) Cancel(ctx context.Context, jobID string, lease int64) error {
	l, err := d.currentCalls(ctx)
	if err != nil {
		return err
	}
	if _, err := l.service.Cancel(ctx, &driverv1.CancelRequest{JobId: jobID, Lease: lease}); err != nil {
		return fmt.Errorf("cancel a migration: %w", err)
	}
	return nil
}

// IsRejected tells whether the error of a Configure is the driver's own word that it has no use for its configuration or its
// servers.
func IsRejected(err error) bool {
	var refused *rejectedError
	return errors.As(err, &refused)
}

func (d *Driver) currentCalls(ctx context.Context) (*migrationCalls, error) {
	s, err := d.currentSession(ctx)
	if err != nil {
		return nil, err
	}
	l, ok := s.calls.(*migrationCalls)
	if !ok {
		return nil, fmt.Errorf("the plugin moves nothing, but has a %T", s.calls)
	}
	return l, nil
}

// serverList is what a driver is configured with, nil until there is something.
type serverList struct {
	mu      sync.Mutex
	servers *[]*driverv1.Server
}

func (i *serverList) set(servers *[]*driverv1.Server) (before *[]*driverv1.Server) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before, i.servers = i.servers, servers
	return before
}

func (i *serverList) get() *[]*driverv1.Server {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.servers
}

// driverKind makes a plugin a driver.
type driverKind struct{ inventory *serverList }

func (driverKind) name() string { return wire.KindDriver }

func (driverKind) service() string { return driverv1.Driver_ServiceDesc.ServiceName }

// start asks what the driver is. Of its servers it is told afterwards, so that one that they make fail can be told of others.
func (k driverKind) start(ctx context.Context, o *Options, conn *grpc.ClientConn) (callSet, string, error) {
	service := driverv1.NewDriverClient(conn)
	answer, err := service.Describe(ctx, &driverv1.DescribeRequest{})
	if err != nil {
		return nil, "", err
	}
	description, err := wire.ToDescription(answer)
	if err != nil {
		return nil, "", fmt.Errorf("the driver's description of itself is of no use: %w", err)
	}
	l := newMigrations(service, description, k.inventory, o)
	go l.pushServers()
	return l, description.Version, nil
}

func (driverKind) crashAdvice() (remedy, consequence string) {
	return "mend it, then try again", "its migrations wait"
}
