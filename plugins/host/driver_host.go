package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/hubrelay/hubrelay/plugins/internal/wire"
	driverv1 "github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

// Driver runs one driver plugin and implements [relay.Driver]. It starts the process on demand or by Start, and
// restarts it after a crash, until Close. Its methods may be called concurrently.
//
// If the plugin did not respond (a crash, a hang, or a failed start), the error is marked by [relay.Indeterminate]: the
// progress is unknown, and Migrate must be called again. If the process ended during the call, Migrate repeats it in a separate
// process, and so do later calls for the job.
type Driver struct {
	*supervisor
	inventory *serverList
	isolated  *isolatedCalls

	configureMu sync.Mutex // serializes Configure
}

var _ relay.Driver = (*Driver)(nil)

// NewDriver returns the host of one driver. It neither starts nor checks the program.
func NewDriver(o Options) (*Driver, error) { return newDriver(o, &serverList{}) }

func newDriver(o Options, inventory *serverList) (*Driver, error) {
	d := &Driver{inventory: inventory, isolated: newIsolatedCalls()}
	s, err := newSupervisor(o, driverKind{inventory})
	if err != nil {
		return nil, err
	}
	d.supervisor = s
	return d, nil
}

// Describe returns the description of the driver. It starts the plugin if necessary.
func (d *Driver) Describe(ctx context.Context) (relay.DriverDescription, error) {
	l, err := d.currentCalls(ctx)
	if err != nil {
		return relay.DriverDescription{}, err
	}
	return l.description, nil
}

// Configure sends the list of servers to the driver, now and after each restart. If the driver rejects it, the previous
// list stays. If the driver cannot be reached, it receives the list later.
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

// Migrate moves an instance; see [relay.Driver]. When ctx ends, the host sends Cancel. If it does not stop within
// HangTimeout, it is killed.
func (d *Driver) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	if d.isolated.isSuspect(m.JobID) {
		return d.migrateAlone(ctx, m, report)
	}
	done := doneSteps(slices.Clone(m.Done))
	err := d.migrateShared(ctx, m, func(p relay.Progress) {
		done.add(p)
		report(p)
	})
	ended := hasEnded(err)
	if ended {
		d.isolated.addSuspect(m.JobID)
	}
	if !ended && !relay.IsPostponed(err) || ctx.Err() != nil {
		return err
	}
	m.Done = done
	return d.migrateAlone(ctx, m, report)
}

// migrateShared makes a call in the process of the driver. The error is marked by [relay.Postpone] if the driver did not get the call.
func (d *Driver) migrateShared(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	err := d.callWithRetry(ctx, func(l *migrationCalls) error { return l.runMigration(ctx, m, report) })
	var unheard *notDeliveredError
	switch {
	case !errors.As(err, &unheard):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the driver: %w", ctx.Err())
	}
	return relay.Indeterminate(relay.Postpone(UnavailableCause(unheard.error), 0))
}

// callWithRetry calls do with the running plugin, and again if that plugin ended before it received the call.
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

// Cancel stops a migration. It returns no error if the migration does not run. A caller of Migrate ends its context
// instead.
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

// IsRejected reports whether the error of Configure is the driver's own rejection of its configuration or servers.
func IsRejected(err error) bool {
	var refused *rejectedError
	return errors.As(err, &refused)
}

// Close stops the driver and all its processes: they may finish their calls, are requested to end, and are killed after some seconds.
// It may be called twice.
func (d *Driver) Close() error {
	d.isolated.close()
	return d.supervisor.Close()
}

func (d *Driver) currentCalls(ctx context.Context) (*migrationCalls, error) {
	s, err := d.currentSession(ctx)
	if err != nil {
		return nil, err
	}
	l, ok := s.calls.(*migrationCalls)
	if !ok {
		return nil, fmt.Errorf("the plugin cannot migrate, but has a %T", s.calls)
	}
	return l, nil
}

// serverList is the list of servers of a driver. It is nil before the first Configure.
type serverList struct {
	mu      sync.Mutex
	servers *[]*driverv1.Server
}

func (s *serverList) set(servers *[]*driverv1.Server) (before *[]*driverv1.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.servers = s.servers, servers
	return before
}

func (s *serverList) get() *[]*driverv1.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servers
}

// driverKind runs a plugin as a driver.
type driverKind struct{ inventory *serverList }

func (driverKind) kindName() string { return wire.KindDriver }

func (driverKind) serviceName() string { return driverv1.Driver_ServiceDesc.ServiceName }

// start requests the description of the driver. The servers follow later, so the driver can receive other ones if these
// make it fail.
func (k driverKind) start(ctx context.Context, o *Options, conn *grpc.ClientConn) (callSet, string, error) {
	service := driverv1.NewDriverClient(conn)
	response, err := service.Describe(ctx, &driverv1.DescribeRequest{})
	if err != nil {
		return nil, "", err
	}
	description, err := wire.ToDescription(response)
	if err != nil {
		return nil, "", fmt.Errorf("the description of the driver is invalid: %w", err)
	}
	l := newMigrations(service, description, k.inventory, o)
	go l.pushServers()
	return l, description.Version, nil
}

func (driverKind) crashAdvice() (remedy, consequence string) {
	return "fix it, then try again", "its migrations wait"
}
