package migration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestWorker_RunsJobAndPublishesEvents(t *testing.T) {
	t.Parallel()
	forEachRedis(t, func(t *testing.T, b *redisconn.Conn) {
		s := newSite(t, b)
		d := &fakeDriver{migrate: func(_ context.Context, _ relay.Migration, report func(relay.Progress)) error {
			report(relay.Progress{Step: "copy", Bytes: 1, Total: 2, Note: []byte("n")})
			report(relay.Progress{Step: "unknown"})
			report(relay.Progress{Step: "copy", Bytes: 2, Total: 2, Completed: true})
			report(relay.Progress{Step: "start", Completed: true})
			return nil
		}}
		id := s.migrate(0, "s2")
		if j := s.job(id); j.State != relay.JobQueued || j.Queued.IsZero() || !j.Started.IsZero() {
			t.Errorf("before the start: got %+v", j)
		}
		s.work(b, "w1", d, nil)
		j := s.awaitEnd(id)
		compare(t, "events", s.events(id), []string{
			"job.created new@s1", "job.state.changed queued@s1", "job.state.changed scheduled@s1",
			"job.state.changed running@s1",
			"container.instance.state.changed migrating@s1", "container.instance.state.changed running@s2",
			"job.state.changed completed@s2",
		})
		if s.serverOf(0) != "s2" {
			t.Errorf("got instance on %s", s.serverOf(0))
		}
		v := j.toView()
		if v.State.Current != relay.JobCompleted || v.Events.Completed == nil || len(v.Tasks) != 2 ||
			v.Tasks[0].Progress != 100 ||
			v.Tasks[1].State.Current != relay.JobCompleted ||
			v.Caption != "Migrate instance i0 of container c0 from s1 to s2" {
			t.Errorf("got view %+v", v)
		}
		call := d.called()[0]
		if call.Lease < time.Now().Add(-time.Minute).UnixMilli() || !call.CopyVolumes || !call.Stateful ||
			call.Undo ||
			string(call.Source.Settings) != `{"path":"/s1"}` ||
			string(call.Destination.Settings) != `{"path":"/s2"}` {
			t.Errorf("got driver call %+v", call)
		}
		list, err := s.svc.Jobs(t.Context(), s.request(0, "").Caller, "c0", "i0")
		if err != nil {
			t.Fatal(err)
		}
		back := s.migrate(0, "s1")
		s.awaitEnd(back)
		if s.serverOf(0) != "s1" ||
			b.Commands().HLen(t.Context(), keys{b.Keys()}.migratedTo(b.Keys().Partition(hubA))).Val() != 0 {
			t.Errorf("got instance on %s, want the server of the file", s.serverOf(0))
		}
		compare(t, "jobs of the instance", list, []relay.TaskDescriptor{{Action: "migrate", JobID: id}})
		if n := b.Commands().XLen(t.Context(), keys{b.Keys()}.jobs(b.Keys().Partition(hubA))).Val(); n != 0 {
			t.Errorf("got %d entries in the stream of jobs, want 0", n)
		}
	})
}

// A client cannot fill Redis with jobs: the oldest jobs of an instance are deleted, and a job does not keep unknown members.
func TestJobs_EndedAreLimited(t *testing.T) {
	t.Parallel()
	forEachRedis(t, func(t *testing.T, b *redisconn.Conn) {
		s := newSite(t, b)
		client, k, p := b.Commands(), keys{b.Keys()}, b.Keys().Partition(hubA)
		for i := range maxJobsPerInstance {
			id := fmt.Sprintf("old%d", i)
			err := errors.Join(client.HSet(t.Context(), k.job(id, p), "state", "completed").Err(),
				client.LPush(t.Context(), k.instanceJobs(p, InstanceField("c0", "i0")), id).Err())
			if err != nil {
				t.Fatal(err)
			}
		}
		exists := func(id string) int64 { return client.Exists(t.Context(), k.job(id, p)).Val() }
		r := s.request(0, "")
		r.Body = []byte(`{"action":"migrate","value":{"destination_server_id":"s2","stateful":{"x":"` +
			strings.Repeat("a", 100_000) + `"}}}`)
		d, err := s.svc.Migrate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		id := d.JobID
		if exists("old0") != 0 || exists("old1") != 1 || exists(id) != 1 {
			t.Errorf("got %d, %d and %d, want the oldest job to be deleted", exists("old0"), exists("old1"), exists(id))
		}
		if n := client.HStrLen(t.Context(), k.job(id, p), "order").Val(); n == 0 || n > 1000 {
			t.Errorf("got %d bytes for the request", n)
		}
	})
}

// After a container has moved to another account or hub, that one sees only its own jobs.
func TestJobs_OfFormerOwner(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	d := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}
	s.work(s.b, "w1", d, nil)
	former := s.migrate(0, "s2")
	s.awaitEnd(former)
	f := inventoryOfSite()
	f.Containers[0].Account = "other"
	if _, err := s.inv.Import(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	r := s.request(0, "s3")
	r.Sees = func(a string) bool { return a == "other" }
	current, err := s.svc.Migrate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.svc.Jobs(t.Context(), r.Caller, "c0", "i0")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "jobs of the current account", list, []relay.TaskDescriptor{{Action: "migrate", JobID: current.JobID}})
	r.Sees = func(string) bool { return true }
	if list, err = s.svc.Jobs(t.Context(), r.Caller, "c0", "i0"); err != nil || len(list) != 2 {
		t.Errorf("a key of all accounts: got %v, %v, want both jobs", list, err)
	}
	s.awaitEnd(current.JobID)
	hub := hubA + "2"
	for s.b.Keys().Partition(hub) != s.b.Keys().Partition(hubA) {
		hub += "2"
	}
	f.Containers[0].Hub, f.Containers[0].Instances[0].Server = hub, "s3"
	if _, err := s.inv.Import(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	r.Hub = hub
	if list, err = s.svc.Jobs(t.Context(), r.Caller, "c0", "i0"); err != nil || len(list) != 0 {
		t.Errorf("another hub: got %v, %v, want no jobs", list, err)
	}
}

// A job uses the server settings at its start, not at the request.
func TestWorker_UsesCurrentServerSettings(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	id := s.migrate(0, "s2")
	f := inventoryOfSite()
	for i := range f.Servers {
		f.Servers[i].Settings = []byte(`{"path":"/changed"}`)
	}
	s.inv.SetFile(f)
	if _, err := s.inv.Import(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	d := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}
	s.work(s.b, "w1", d, nil)
	s.awaitEnd(id)
	m := d.called()[0]
	if string(m.Source.Settings) != `{"path":"/changed"}` || string(m.Destination.Settings) != `{"path":"/changed"}` {
		t.Errorf("got settings %s and %s", m.Source.Settings, m.Destination.Settings)
	}
}

func TestWorker_FailedJobKeepsInstance(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	d := &fakeDriver{migrate: func(_ context.Context, _ relay.Migration, report func(relay.Progress)) error {
		report(relay.Progress{Step: "copy", Bytes: 1, Total: 2})
		return errors.New("the disk of s2 is full; free some space and try again")
	}}
	s.work(b, "w1", d, nil)
	id := s.migrate(1, "s2")
	j := s.awaitEnd(id)
	const cause = "the disk of s2 is full; free some space and try again"
	if v := j.toView(); v.State.Current != relay.JobError || v.State.Error.String() != cause ||
		v.Tasks[0].State.Current != relay.JobError || v.Tasks[0].Error.String() != cause || v.Tasks[0].Progress != 50 {
		t.Errorf("got view %+v", v)
	}
	events := s.events(id)
	compare(t, "last events", events[len(events)-3:], []string{
		"container.instance.error running@s1 " +
			cause, "container.instance.state.changed running@s1", "job.state.changed error@s1 " + cause,
	})
	if s.serverOf(1) != "s1" {
		t.Errorf("got instance on %s", s.serverOf(1))
	}
	s.awaitEnd(s.migrate(1, "s3")) // the instance can be migrated again
}

// A call that the driver did not get is no reason to roll back.
func TestWorker_RepeatsUndeliveredCalls(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.lease = time.Minute // a late heartbeat would cancel a call
	var calls atomic.Int64
	d := &fakeDriver{migrate: func(_ context.Context, m relay.Migration, _ func(relay.Progress)) error {
		switch {
		case m.Undo:
			return errors.New("undone")
		case calls.Add(1) <= 3*maxDriverFailures:
			return relay.Indeterminate(relay.Postpone(errors.New("the driver does not run"), 0))
		}
		return nil
	}}
	s.work(b, "w1", d, nil)
	if j := s.awaitEnd(s.migrate(2, "s2")); j.State != relay.JobCompleted {
		t.Errorf("got state %s, error %q", j.State, j.Error)
	}
}

func TestWorker_RollsBackIndeterminate(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	s.lease = time.Minute // a late heartbeat would cancel a call
	d := &fakeDriver{migrate: func(_ context.Context, m relay.Migration, _ func(relay.Progress)) error {
		if m.Undo {
			return errors.New("undone")
		}
		return relay.Indeterminate(errors.New("the driver has crashed"))
	}}
	s.work(b, "w1", d, nil)
	j := s.awaitEnd(s.migrate(2, "s2"))
	if j.State != relay.JobError || j.Error != "the driver has crashed; undone" {
		t.Errorf("got state %s, error %q", j.State, j.Error)
	}
	if n := len(d.called()); n != maxDriverFailures+1 {
		t.Errorf("got %d driver calls, want %d", n, maxDriverFailures+1)
	}
}

// A worker without Redis stops. Another continues with a higher lease, and later writes of the first change
// nothing.
func TestWorker_TakesOverFromFailedWorker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := open(t, server.URL())
	s := newSite(t, b)
	release := make(chan struct{})
	stopped := make(chan struct{})
	first := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, report func(relay.Progress)) error {
		report(relay.Progress{Step: "copy", Completed: true, Note: []byte("half way")})
		<-ctx.Done()
		close(stopped)
		<-release
		return nil // simulates a completed migration
	}}
	lost := open(t, server.URL())
	stopFirst := s.work(lost, "w1", first, nil)
	id := s.migrate(3, "s2")
	s.await(id, "half completed", func(j *job) bool { return j.Progress["copy"].Completed })
	second := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}
	s.work(b, "w2", second, nil)
	lost.Close()
	j := s.awaitEnd(id)
	<-stopped
	close(release)
	stopFirst()
	if j.State != relay.JobCompleted || s.serverOf(3) != "s2" {
		t.Errorf("got state %s on %s", j.State, s.serverOf(3))
	}
	calls := second.called()
	if len(calls) != 1 || calls[0].Lease <= first.called()[0].Lease || len(calls[0].Done) != 1 ||
		string(calls[0].Done[0].Note) != "half way" {
		t.Errorf("second driver got %+v, first got %+v", calls, first.called())
	}
	if j := s.job(id); j.lease != calls[0].Lease {
		t.Error("the first worker changed the job")
	}
}

func TestWorker_HandsOverAtShutdown(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	waits := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, report func(relay.Progress)) error {
		report(relay.Progress{Step: "copy"})
		<-ctx.Done()
		return ctx.Err()
	}}
	stop := s.work(b, "w1", waits, nil)
	id := s.migrate(4, "s2")
	s.await(id, "started", func(j *job) bool { _, ok := j.Progress["copy"]; return ok })
	stop()
	s.work(b, "w2",
		&fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}, nil)
	if j := s.awaitEnd(id); j.State != relay.JobCompleted {
		t.Errorf("got state %s, error %s", j.State, j.Error)
	}
}

// A driver call that can no longer be stopped completes its job, although the worker was stopped and could not
// store the last report.
func TestWorker_StoresSuccessDuringShutdown(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	var late atomic.Bool
	storing := make(chan struct{})
	var once sync.Once
	d := &fakeDriver{migrate: func(ctx context.Context, _ relay.Migration, report func(relay.Progress)) error {
		report(relay.Progress{Step: "copy"})
		<-ctx.Done()
		late.Store(true)
		report(relay.Progress{Step: "start", Completed: true})
		<-storing
		return nil
	}}
	stop := s.work(b, "w1", d, func(o *WorkerOptions) {
		o.NewID = func() string { // called for the event of a step
			if late.Load() {
				once.Do(func() { close(storing) })
			}
			return s.newID()
		}
	})
	id := s.migrate(4, "s2")
	s.await(id, "started", func(j *job) bool { _, ok := j.Progress["copy"]; return ok })
	stop()
	j := s.job(id)
	if _, stored := j.Progress["start"]; stored {
		t.Error("the last report was stored, so the test proves nothing")
	}
	if j.State != relay.JobCompleted || s.serverOf(4) != "s2" {
		t.Errorf("got state %s on %s, want completed on s2", j.State, s.serverOf(4))
	}
	events := s.events(id)
	compare(t, "last events", events[len(events)-3:], []string{
		"container.instance.state.changed migrating@s1", "container.instance.state.changed running@s2",
		"job.state.changed completed@s2",
	})
}

func TestWorker_LimitsMigrationsPerServer(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	var running atomic.Int64
	var mu sync.Mutex
	var peak int64
	d := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error {
		n := running.Add(1)
		mu.Lock()
		peak = max(peak, n)
		mu.Unlock()
		time.Sleep(15 * time.Millisecond) // duration of a migration
		running.Add(-1)
		return nil
	}}
	s.lease = time.Minute // slots must not expire on a slow machine
	ids := make([]string, 10)
	for i := range ids {
		ids[i] = s.migrate(i, "s2")
	}
	var stops []func()
	for _, name := range []string{"w1", "w2"} {
		stops = append(stops, s.work(b, name, d, nil))
	}
	for _, id := range ids {
		if j := s.awaitEnd(id); j.State != relay.JobCompleted {
			t.Errorf("got state %s, error %s", j.State, j.Error)
		}
	}
	if peak != 2 {
		t.Errorf("got %d concurrent migrations, want 2", peak)
	}
	for _, stop := range stops { // a worker releases the slots after the end of a job
		stop()
	}
	if n := b.Commands().HLen(t.Context(), keys{b.Keys()}.serverSlots()).Val(); n != 0 {
		t.Errorf("got %d server slots, want 0", n)
	}
}

func TestWorker_ExpiresWaitingJob(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	s := newSite(t, b)
	id := s.migrate(5, "s2")
	s.work(b, "w1", &fakeDriver{}, func(o *WorkerOptions) { o.ServerConcurrency, o.ExpireAfter = 0, time.Millisecond })
	j := s.awaitEnd(id)
	if j.State != relay.JobExpired || !strings.Contains(j.Error, "nothing was changed") || !j.Started.IsZero() {
		t.Errorf("got state %s, error %q", j.State, j.Error)
	}
	events := s.events(id)
	compare(t, "last event", events[len(events)-1], "job.state.changed expired@s1 "+j.Error)
}
