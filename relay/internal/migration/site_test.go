package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/module"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// fakeDriver is a driver with a Migrate function that the test defines. It records its calls.
type fakeDriver struct {
	migrate func(ctx context.Context, m relay.Migration, report func(relay.Progress)) error

	mu      sync.Mutex
	servers []relay.Server
	calls   []relay.Migration
}

func (d *fakeDriver) Describe(context.Context) (relay.DriverDescription, error) {
	return relay.DriverDescription{
		Name: "fake", Steps: []relay.MigrationStep{{ID: "copy", Caption: "Copy"}, {ID: "start", Caption: "Start"}},
	}, nil
}

func (d *fakeDriver) Configure(_ context.Context, servers []relay.Server) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers = servers
	return nil
}

func (d *fakeDriver) Migrate(ctx context.Context, m relay.Migration, report func(relay.Progress)) error {
	d.mu.Lock()
	d.calls = append(d.calls, m)
	d.mu.Unlock()
	return d.migrate(ctx, m, report)
}

func (d *fakeDriver) Close() error { return nil }

func (d *fakeDriver) called() []relay.Migration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]relay.Migration(nil), d.calls...)
}

const hubA = "hub-a"

// site is a Redis with an inventory. Cluster one has the servers s1 to s4, and cluster two has t1. Each of the
// containers c0 to c9 of hub-a has one instance on s1.
type site struct {
	t   *testing.T
	b   *redisconn.Conn
	inv *Inventory
	svc *Service
	ids atomic.Int64
	// capacity is the maximum number of held jobs, or 0 for the default.
	capacity int
	// lease is the heartbeat timeout, or 0 for the default of tests.
	lease time.Duration
}

func newSite(t *testing.T, b *redisconn.Conn) *site {
	t.Helper()
	s := &site{t: t, b: b, inv: newInventoryWith(b, inventoryOfSite())}
	if _, err := s.inv.Import(t.Context(), inventoryOfSite()); err != nil {
		t.Fatal(err)
	}
	s.svc = NewService(b, s.inv, s.newID)
	return s
}

// newInventoryWith returns an inventory with f as the operator's file.
func newInventoryWith(b *redisconn.Conn, f *File) *Inventory {
	v := NewInventory(b.Commands(), b.Keys())
	v.SetFile(f)
	return v
}

func inventoryOfSite() *File {
	f := &File{}
	for _, id := range []string{"s1", "s2", "s3", "s4"} {
		f.Servers = append(f.Servers, relay.Server{ID: id, Cluster: "one", Settings: []byte(`{"path":"/` + id + `"}`)})
	}
	f.Servers = append(f.Servers, relay.Server{ID: "t1", Cluster: "two", Settings: []byte(`{}`)})
	for i := range 10 {
		f.Containers = append(f.Containers, FileContainer{
			Container{ID: fmt.Sprint("c", i), Hub: hubA, Account: "acc", Environment: "env", Stateful: true},
			[]FileInstance{{fmt.Sprint("i", i), "s1"}},
		})
	}
	f.Containers = append(f.Containers, FileContainer{Container{ID: "x", Hub: "hub-b"}, []FileInstance{{"y", "t1"}}})
	return f
}

func (s *site) newID() string { return fmt.Sprintf("%024x", s.ids.Add(1)) }

// work starts a worker, which runs until the returned function is called or the test ends.
func (s *site) work(b *redisconn.Conn, name string, d relay.Driver, change func(*WorkerOptions)) (stop func()) {
	s.t.Helper()
	o := WorkerOptions{
		Redis: b, Inventory: s.inv, Driver: d, Name: name,
		ServerConcurrency: 2, ExpireAfter: time.Hour, StallTimeout: time.Hour, NewID: s.newID,
	}
	if change != nil {
		change(&o)
	}
	w := NewWorker(o)
	w.timings = workerTimings{
		heartbeatTimeout: cmp.Or(
			s.lease, 400*time.Millisecond,
		), heartbeatInterval: 50 * time.Millisecond, slotPollInterval: 10 * time.Millisecond,
		progressInterval: 20 * time.Millisecond,
		minRetryWait:     10 * time.Millisecond, maxRetryWait: 50 * time.Millisecond,
	}
	if s.capacity > 0 {
		w.heldSlots, w.maxAhead = make(chan struct{}, s.capacity), s.capacity/2
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				s.t.Errorf("worker %s: got error %v", name, err)
			}
		})
	}
	s.t.Cleanup(stop)
	return stop
}

func (s *site) request(n int, destination string) Request {
	return Request{
		Caller:    module.Caller{KeyName: "k", Hub: hubA, Sees: func(a string) bool { return a == "" || a == "acc" }},
		Container: fmt.Sprint("c", n), Instance: fmt.Sprint("i", n), ContentType: "application/json",
		Body: []byte(
			`{"action":"migrate","value":{"destination_server_id":"` + destination +
				`","stateful":{"copy_volumes":true,"speed":3}}}`,
		),
	}
}

func (s *site) migrate(n int, destination string) string {
	s.t.Helper()
	d, err := s.svc.Migrate(s.t.Context(), s.request(n, destination))
	if err != nil {
		s.t.Fatal(err)
	}
	return d.JobID
}

func (s *site) job(id string) *job {
	s.t.Helper()
	j, err := s.svc.store.loadJob(s.t.Context(), hubA, id)
	if err != nil || j == nil {
		s.t.Fatalf("job %s: %v", id, err)
	}
	return j
}

// await waits until ok returns true for the job.
func (s *site) await(id string, name string, ok func(*job) bool) (j *job) {
	s.t.Helper()
	testkit.Eventually(s.t, "job "+id+" to become "+name, func() (err error) {
		if j, err = s.svc.store.loadJob(s.t.Context(), hubA, id); err == nil && (j == nil || !ok(j)) {
			err = fmt.Errorf("got %+v", j)
		}
		return err
	})
	return j
}

func (s *site) awaitEnd(id string) *job {
	s.t.Helper()
	return s.await(id, "final", func(j *job) bool { return j.State.IsFinal() })
}

// events returns the topics and states of the events of a job in the log of hub-a. It omits events about steps.
func (s *site) events(id string) (list []string) {
	s.t.Helper()
	all, err := eventlog.New(s.b, s.b.Keys(), eventlog.Options{}).Range(s.t.Context(), s.b.Keys().Partition(hubA), "0-0", 10000)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, n := range all {
		var e event
		if err := json.Unmarshal(n.Data, &e); err != nil {
			s.t.Fatal(err)
		}
		if e.Object.Job != id || e.Object.Task != nil {
			continue
		}
		if n.Hub != hubA || n.Account != "acc" || !reflect.DeepEqual(e.Context, relay.Context{
			HubID: hubA, AccountID: "acc", Environments: []string{"env"}, DNSZones: []string{},
			Clusters:   []string{"one"},
			Containers: []string{"c" + e.Object.Instance[1:]},
		}) {
			s.t.Errorf("wrong context in %s", n.Data)
		}
		list = append(list,
			strings.TrimSpace(fmt.Sprintf("%s %s@%s %s", n.Topic, e.Object.State, e.Object.Server, e.Object.Error)))
	}
	return list
}

// serverOf returns the current server of the instance with number n.
func (s *site) serverOf(n int) string {
	s.t.Helper()
	f, err := s.inv.Find(s.t.Context(), hubA, fmt.Sprint("c", n), fmt.Sprint("i", n), "")
	if err != nil {
		s.t.Fatal(err)
	}
	return f.Source.ID
}

func compare(t *testing.T, name string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
	}
}
