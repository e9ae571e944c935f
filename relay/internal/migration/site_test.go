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
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// fakeDriver stands for a driver process: what it does with a migration is the test's.
type fakeDriver struct {
	migrate func(ctx context.Context, m relay.Migration, report func(relay.Progress)) error

	mu      sync.Mutex
	servers []relay.Server
	calls   []relay.Migration
}

func (d *fakeDriver) Describe(context.Context) (relay.DriverDescription, error) {
	return relay.DriverDescription{Name: "fake", Steps: []relay.MigrationStep{{ID: "copy", Caption: "Copy"}, {ID: "start", Caption: "Start"}}}, nil
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

// site is a Redis with an inventory: cluster one has the servers s1 to s4, two has t1; each container c0 to c9 of hub-a has
// an instance i0 to i9 on s1, and x of hub-b has y on t1.
type site struct {
	t   *testing.T
	b   *redisconn.Conn
	inv *Inventory
	svc *Service
	ids atomic.Int64
	// room is how many jobs a worker has in hand, as usual where it is zero.
	room int
	// hold is how long a claim lasts, as usual in tests where it is zero.
	hold time.Duration
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

// newInventoryWith returns an inventory whose operator's file is f.
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

// work runs a worker until the returned function is called, or the test ends.
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
		heartbeatTimeout: cmp.Or(s.hold, 400*time.Millisecond), heartbeatInterval: 50 * time.Millisecond, slotPollInterval: 10 * time.Millisecond, progressInterval: 20 * time.Millisecond,
		minRetryWait: 10 * time.Millisecond, maxRetryWait: 50 * time.Millisecond,
	}
	if s.room > 0 {
		w.heldSlots, w.maxAhead = make(chan struct{}, s.room), s.room/2
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				s.t.Errorf("the worker %s: %v", name, err)
			}
		})
	}
	s.t.Cleanup(stop)
	return stop
}

func (s *site) request(n int, destination string) Request {
	return Request{
		Caller:    Caller{KeyName: "k", Hub: hubA, Sees: func(a string) bool { return a == "" || a == "acc" }},
		Container: fmt.Sprint("c", n), Instance: fmt.Sprint("i", n), ContentType: "application/json",
		Body: []byte(`{"action":"migrate","value":{"destination_server_id":"` + destination + `","stateful":{"copy_volumes":true,"speed":3}}}`),
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

// await waits until the job is as asked.
func (s *site) await(id string, what string, ok func(*job) bool) (j *job) {
	s.t.Helper()
	testkit.Eventually(s.t, "job "+id+" to become "+what, func() (err error) {
		if j, err = s.svc.store.loadJob(s.t.Context(), hubA, id); err == nil && (j == nil || !ok(j)) {
			err = fmt.Errorf("it is %+v", j)
		}
		return err
	})
	return j
}

func (s *site) over(id string) *job {
	s.t.Helper()
	return s.await(id, "over", func(j *job) bool { return j.State.IsFinal() })
}

// told returns the topics and states that the log of hub-a tells of a job, without those of its steps.
func (s *site) told(id string) (list []string) {
	s.t.Helper()
	all, err := eventlog.New(s.b, s.b.Keys()).Range(s.t.Context(), s.b.Keys().Partition(hubA), "0-0", 10000)
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
			HubID: hubA, AccountID: "acc", Environments: []string{"env"}, DNSZones: []string{}, Clusters: []string{"one"},
			Containers: []string{"c" + e.Object.Instance[1:]},
		}) {
			s.t.Errorf("context of %s", n.Data)
		}
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s@%s %s", n.Topic, e.Object.State, e.Object.Server, e.Object.Error)))
	}
	return list
}

func (s *site) where(n int) string {
	s.t.Helper()
	f, err := s.inv.Find(s.t.Context(), hubA, fmt.Sprint("c", n), fmt.Sprint("i", n), "")
	if err != nil {
		s.t.Fatal(err)
	}
	return f.Source.ID
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}
