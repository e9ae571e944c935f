package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

// actor is a driver that behaves as the container's name says, and records its calls.
type actor struct {
	config settings
	mu     sync.Mutex
}

func runDriver() error {
	a := &actor{}
	return sdk.ServeDriver(a, sdk.Config(&a.config), sdk.Version("1.2.3"))
}

func (a *actor) note(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := os.OpenFile(a.config.Report, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, format+"\n", args...)
	return errors.Join(err, f.Close())
}

func (a *actor) Describe(context.Context) (relay.DriverDescription, error) {
	return relay.DriverDescription{
		Name: "actor", Steps: []relay.MigrationStep{{ID: "copy", Caption: "Copy"}, {ID: "start", Caption: "Start"}},
	}, nil
}

func (a *actor) Configure(_ context.Context, servers []relay.Server) error {
	var ids []string
	for _, s := range servers {
		switch {
		case string(s.Settings) != "{}":
			return fmt.Errorf("server %s: path is missing:\nname a folder", s.ID)
		case s.ID == "deadly":
			os.Exit(5)
		case s.ID == "once":
			if _, err := os.Stat(a.config.Report + ".once"); err == nil {
				return errors.New("server once: it is not there any more")
			}
			if err := os.WriteFile(a.config.Report+".once", nil, 0o600); err != nil {
				return err
			}
		}
		ids = append(ids, s.ID)
	}
	return a.note("configure %s", strings.Join(ids, ","))
}

func (a *actor) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	if err := a.note("%s %s %d %v", m.Container, m.JobID, m.Lease, m.Undo); err != nil {
		return err
	}
	report(relay.Progress{Step: "copy", Bytes: 1, Total: 2, Note: []byte("half")})
	switch m.Container {
	case "fail":
		return errors.New("no space left on b")
	case "unsettled":
		return relay.Indeterminate(errors.New("a does not respond"))
	case "superseded":
		return fmt.Errorf("at b: %w", relay.ErrSuperseded)
	case "panic":
		panic("a secret")
	case "slow":
		<-ctx.Done()
		return errors.Join(a.note("stopped %s", m.JobID), fmt.Errorf("copy: %w", ctx.Err()))
	case "deaf":
		time.Sleep(time.Minute)
	case "die":
		os.Exit(4)
	case "nonsense":
		report(relay.Progress{Step: "dance"})
		report(relay.Progress{Step: "start", Total: -1})
		report(relay.Progress{Step: "copy", Note: make([]byte, 1<<20)})
	case "children":
		return errors.Join(a.child("kept", &syscall.SysProcAttr{Setsid: true}), a.child("lost", nil))
	}
	report(relay.Progress{Step: "copy", Completed: true, Bytes: 2, Total: 2})
	report(relay.Progress{Step: "start", Completed: true, Time: time.Unix(7, 0)})
	return nil
}

// child starts a process that runs on.
func (a *actor) child(name string, attr *syscall.SysProcAttr) error {
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return err
	}
	return a.note("%s %d", name, cmd.Process.Pid)
}

func (a *actor) Close() error { return a.note("closed") }

// driverRig is the host of a driver.
type driverRig struct {
	*Driver
	*watch
}

func newDriverRig(t *testing.T, mode string, change func(*Options)) *driverRig {
	t.Helper()
	w, o := newWatch(t, mode, change)
	d, err := NewDriver(o)
	if err != nil {
		t.Fatal(err)
	}
	w.closes(d, d.Status)
	return &driverRig{d, w}
}

// configured is a driver that knows the servers a and b.
func configured(t *testing.T, change func(*Options)) *driverRig {
	t.Helper()
	r := newDriverRig(t, "driver", change)
	if err := r.configure("a", "b"); err != nil {
		t.Fatal(err)
	}
	return r
}

// configure names servers; one whose name begins with "bad" has settings of no use.
func (r *driverRig) configure(ids ...string) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	servers := make([]relay.Server, 0, len(ids))
	for _, id := range ids {
		settings := "{}"
		if strings.HasPrefix(id, "bad") {
			settings = `{"pat":"/x"}`
		}
		servers = append(servers, relay.Server{ID: id, Cluster: "c", Settings: []byte(settings)})
	}
	return r.Configure(ctx, servers)
}

// order is a migration that ends as its container says.
func order(container, job string) relay.Migration {
	return relay.Migration{
		JobID: job, Lease: 3, Container: container, Instance: "i", Source: relay.Server{ID: "a"},
		Destination: relay.Server{ID: "b"},
	}
}

// migrate makes one call.
func (r *driverRig) migrate(container, job string) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return r.Migrate(ctx, order(container, job), func(relay.Progress) {})
}

// begin makes a call in the background that ends as its container says, and waits until the driver has it.
func (r *driverRig) begin(ctx context.Context, container, job string) <-chan error {
	r.t.Helper()
	ended, has := make(chan error, 1), make(chan struct{})
	var once sync.Once
	go func() {
		ended <- r.Migrate(ctx, order(container, job), func(relay.Progress) { once.Do(func() { close(has) }) })
	}()
	select {
	case <-has:
	case err := <-ended:
		r.t.Fatalf("%s ended before it began: %v", job, err)
	case <-time.After(time.Minute):
		r.t.Fatalf("%s did not begin", job)
	}
	return ended
}
