package migration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

// An import cannot change servers. Otherwise it could make the driver run any command.
func TestImport_CannotChangeServers(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	for change, servers := range map[string][]relay.Server{
		`changes the server "s1"`: {
			server("s1", "p", `{"path":"/attacker"}`), server("s2", "p", `{}`), server("s3", "q", `{}`),
		},
		`changes the server "s2"`: {
			server("s1", "p", `{"path":"/a"}`), server("s2", "other", `{}`), server("s3", "q", `{}`),
		},
		`adds the server "s4"`:    append(sample().Servers, server("s4", "p", `{"path":"/attacker"}`)),
		`removes the server "s3"`: sample().Servers[:2],
	} {
		f := sample()
		f.Servers = servers
		f.Containers[0].Account = "changed"
		_, err := v.Import(t.Context(), f)
		var refused *ServersError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), change) {
			t.Errorf("got %v, want an error that the import %s", err, change)
		}
		if c := v.find("h1", "c1", "i1", "").Container; c.Account != "acc" {
			t.Errorf("an import that %s changed the container to %+v", change, c)
		}
	}
	if got := string(v.find("h1", "c1", "i1", "s2").Source.Settings); got != `{"path":"/a"}` {
		t.Errorf("got settings %s, want the settings of the operator's file", got)
	}
}

func TestImport_MayOmitServers(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	f, err := ParseImport("x", []byte("containers: {c1: {hub_id: h1, instances: {i1: {server_id: s2}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Import(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	list, err := v.List(t.Context())
	if got := v.listServers(); err != nil || got != "c1/i1@s2" || len(list.Servers) != 3 {
		t.Errorf("got %s with %d servers, %v; want c1/i1@s2 with 3", got, len(list.Servers), err)
	}
	f, err = ParseImport("x", []byte("containers: {c1: {hub_id: h1, instances: {i1: {server_id: nowhere}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	var refused *ServersError
	if _, err := v.Import(t.Context(), f); !errors.As(err, &refused) || refused.Server != "nowhere" {
		t.Errorf("got %v, want an error about the unknown server", err)
	}
	if _, err := ParseFile("x",
		[]byte("containers: {c1: {hub_id: h1, instances: {i1: {server_id: s1}}}}")); err == nil {
		t.Error("an operator's file without servers was accepted")
	}
}

// The driver does not receive servers that another process writes to Redis. Producers of notifications can have write
// access to Redis.
func TestServers_IgnoreSettingsInRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	if err := s.inv.client.HSet(t.Context(), s.inv.keys.servers(),
		"s1", `{"cluster":"one","settings":{"path":"/attacker"}}`, "s9", `{"cluster":"one",`+
			`"settings":{"path":"/attacker"}}`).Err(); err != nil {
		t.Fatal(err)
	}
	d := &fakeDriver{migrate: func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }}
	s.work(s.b, "w", d, nil)
	s.awaitEnd(s.migrate(0, "s2"))
	if m := d.called()[0]; string(m.Source.Settings) != `{"path":"/s1"}` ||
		string(m.Destination.Settings) != `{"path":"/s2"}` {
		t.Errorf("Migrate got settings %s and %s", m.Source.Settings, m.Destination.Settings)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, server := range d.servers {
		if server.ID == "s9" || strings.Contains(string(server.Settings), "attacker") {
			t.Errorf("Configure got %s with %s", server.ID, server.Settings)
		}
	}
}

// A node whose inventory file lacks a server leaves the job to a node that has it.
func TestWorker_LeavesJobWithUnknownServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, newRedis(t))
	migrate := func(context.Context, relay.Migration, func(relay.Progress)) error { return nil }
	lacking, complete := &fakeDriver{migrate: migrate}, &fakeDriver{migrate: migrate}
	f := inventoryOfSite()
	f.Servers = f.Servers[:1]
	s.work(s.b, "lacking", lacking, func(o *WorkerOptions) { o.Inventory = newInventoryWith(s.b, f) })
	id := s.migrate(0, "s2")
	s.await(id, "scheduled", func(j *job) bool { return j.State == relay.JobScheduled })
	s.work(s.b, "complete", complete, nil)
	if j := s.awaitEnd(id); j.State != relay.JobCompleted || len(lacking.called()) != 0 || len(complete.called()) == 0 {
		t.Errorf("got state %s with %d and %d calls, want completed with 0 and at least 1", j.State, len(lacking.called()),
			len(complete.called()))
	}
}

// If Redis loses the inventory, Servers imports the file again, because a driver without servers stops all instances.
func TestServers_ReimportLostInventory(t *testing.T) {
	v := newInventory(t)
	v.importFile(sample())
	v.must(v.client.FlushDB(t.Context()).Err())
	servers, err := v.Servers(t.Context())
	if err != nil || len(servers) != 3 || len(servers[0].Instances) != 2 {
		t.Errorf("got %+v, %v; want the three servers with their instances", servers, err)
	}
}
