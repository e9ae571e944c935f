package migration

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// testInventory is an Inventory with test helpers, such as helpers that simulate jobs.
type testInventory struct {
	*Inventory
	t *testing.T
	b *redisconn.Conn
}

func newInventory(t *testing.T) *testInventory {
	t.Helper()
	b := newRedis(t)
	return &testInventory{Inventory: NewInventory(b.Commands(), b.Keys()), t: t, b: b}
}

func (t *testInventory) must(err error) {
	t.t.Helper()
	if err != nil {
		t.t.Fatal(err)
	}
}

// importFile sets f as the operator's file and imports it.
func (t *testInventory) importFile(f *File) Changes {
	t.t.Helper()
	t.SetFile(f)
	c, err := t.Import(t.t.Context(), f)
	t.must(err)
	return c
}

// recordMove records a move like a completed job.
func (t *testInventory) recordMove(hub, field, server string) {
	t.t.Helper()
	t.must(t.client.HSet(t.t.Context(), t.keys.migratedTo(t.keys.Partition(hub)), field, server).Err())
}

// setMigrating records a running job of an instance. An empty job removes the record.
func (t *testInventory) setMigrating(hub, field, job string) {
	t.t.Helper()
	key := t.keys.activeMigrations(t.keys.Partition(hub))
	if job == "" {
		t.must(t.client.HDel(t.t.Context(), key, field).Err())
		return
	}
	t.must(t.client.HSet(t.t.Context(), key, field, job).Err())
}

func (t *testInventory) version() int64 {
	t.t.Helper()
	n, err := t.importCount(t.t.Context())
	t.must(err)
	return n
}

// listServers returns the instances as container/instance@server. For a moved instance, the server in the file follows
// in parentheses.
func (t *testInventory) listServers() string {
	t.t.Helper()
	l, err := t.List(t.t.Context())
	t.must(err)
	var all []string
	for _, c := range l.Containers {
		for _, i := range c.Instances {
			one := InstanceField(c.ID, i.ID) + "@" + i.Server
			if i.MovedFrom != "" {
				one += "(" + i.MovedFrom + ")"
			}
			all = append(all, one)
		}
	}
	return strings.Join(all, " ")
}

func (t *testInventory) find(hub, container, instance, destination string) InstanceLookup {
	t.t.Helper()
	f, err := t.Find(t.t.Context(), hub, container, instance, destination)
	t.must(err)
	return f
}

func server(id, cluster, settings string) relay.Server {
	return relay.Server{ID: id, Cluster: cluster, Settings: []byte(settings)}
}

// container returns a container. Each of its instances has the form id@server.
func container(id, hub string, instances ...string) FileContainer {
	c := FileContainer{Container: Container{ID: id, Hub: hub, Account: "acc", Stateful: true}}
	for _, one := range instances {
		name, at, _ := strings.Cut(one, "@")
		c.Instances = append(c.Instances, FileInstance{ID: name, Server: at})
	}
	return c
}

// sample returns containers in three partitions.
func sample() *File {
	return &File{
		Servers: []relay.Server{server("s1", "p", `{"path":"/a"}`), server("s2", "p", `{}`), server("s3", "q", `{}`)},
		Containers: []FileContainer{
			container("c1", "h1", "i1@s1",
				"i2@s2"), container("c2", "h2", "j1@s1"), container("c3", "h3"), container("c4", "h4", "k1@s3"),
		},
	}
}

func TestInventory_Find(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	f := v.find("h1", "c1", "i1", "s2")
	want := InstanceLookup{
		Container: Container{ID: "c1", Hub: "h1", Account: "acc", Stateful: true},
		Source:    server("s1", "p", `{"path":"/a"}`), Destination: server("s2", "p", `{}`),
	}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("got %+v", f)
	}
	if f := v.find("h1", "c1", "i1", "s1"); f.Source.ID != "s1" || !reflect.DeepEqual(f.Source, f.Destination) {
		t.Errorf("same server: got %+v", f)
	}
	for _, absent := range []string{"s9", "", strings.Repeat("x", 10_000)} {
		if f := v.find("h1", "c1", "i1", absent); f.Destination.ID != "" || f.Source.Cluster != "p" {
			t.Errorf("got %+v", f)
		}
	}
	v.recordMove("h1", "c1/i1", "s2")
	if f := v.find("h1", "c1", "i1", "s1"); f.Source.ID != "s2" || f.Destination.ID != "s1" {
		t.Errorf("moved: got %+v", f)
	}
	v.recordMove("h1", "c1/i1", "s9")
	if f := v.find("h1", "c1", "i1", "s1"); f.Source.ID != "s9" || f.Source.Cluster != "" {
		t.Errorf("moved to a removed server: got %+v", f)
	}
}

func TestInventory_FindMissing(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	f := sample()
	other := "" // a hub in the same partition as h1
	for i := 'a'; other == ""; i++ {
		if v.keys.Partition(string(i)) == v.keys.Partition("h1") {
			other = string(i)
		}
	}
	v.importFile(f)
	for name, c := range map[string]struct {
		hub, container, instance string
		want                     error
	}{
		"no container":                      {"h1", "c9", "i1", ErrNoContainer},
		"another hub":                       {"h2", "c1", "i1", ErrNoContainer},
		"another hub in the same partition": {other, "c1", "i1", ErrNoContainer},
		"no hub":                            {"", "c1", "i1", ErrNoContainer},
		"no instance":                       {"h1", "c1", "i9", ErrNoInstance},
		"instance of another container":     {"h1", "c1", "j1", ErrNoInstance},
		"container without instances":       {"h3", "c3", "i1", ErrNoInstance},
		"slash":                             {"h1", "c1/i1", "", ErrNoContainer},
		"slash and instance":                {"h1", "c1", "i1/x", ErrNoInstance},
		"empty":                             {"h1", "", "", ErrNoContainer},
		"control character":                 {"h1", "c1", "i1\x00", ErrNoInstance},
		"long":                              {"h1", strings.Repeat("c", 10_000), "i1", ErrNoContainer},
	} {
		got, err := v.Find(t.Context(), c.hub, c.container, c.instance, "s1")
		if errors.Is(c.want, ErrNoInstance) && got.Container.ID == c.container && got.Container.Hub == c.hub {
			got.Container = Container{} // the container exists
		}
		if !errors.Is(err, c.want) || !reflect.DeepEqual(got, InstanceLookup{}) {
			t.Errorf("%s: got %+v and error %v, want error %v", name, got, err, c.want)
		}
	}
}

func TestInventory_ServersAndList(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	if l, err := v.List(t.Context()); err != nil || !reflect.DeepEqual(l, Listing{}) {
		t.Errorf("empty inventory: got %+v, %v", l, err)
	}
	v.importFile(sample())
	v.recordMove("h2", "c2/j1", "s2")
	v.setMigrating("h1", "c1/i2", "job1")
	servers, err := v.Servers(t.Context())
	v.must(err)
	s1, s2, s3 := server("s1", "p", `{"path":"/a"}`), server("s2", "p", `{}`), server("s3", "q", `{}`)
	s1.Instances, s2.Instances, s3.Instances = []string{"i1"}, []string{"i2", "j1"}, []string{"k1"}
	if want := []relay.Server{s1, s2, s3}; !reflect.DeepEqual(servers, want) {
		t.Errorf("got %+v", servers)
	}
	l, err := v.List(t.Context())
	v.must(err)
	want := []ListedContainer{
		{
			sample().Containers[0].Container,
			[]ListedInstance{{ID: "i1", Server: "s1"}, {ID: "i2", Server: "s2", Job: "job1"}},
		},
		{sample().Containers[1].Container, []ListedInstance{{ID: "j1", Server: "s2", MovedFrom: "s1"}}},
		{sample().Containers[2].Container, nil},
		{sample().Containers[3].Container, []ListedInstance{{ID: "k1", Server: "s3"}}},
	}
	if l.Version != 1 || !reflect.DeepEqual(l.Servers, servers) || !reflect.DeepEqual(l.Containers, want) {
		t.Errorf("got %+v", l)
	}
}

func TestInventory_RedisUnreachable(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.must(v.client.Close())
	_, err1 := v.Find(t.Context(), "h", "c", "i", "s")
	v.SetFile(sample())
	_, err2 := v.Import(t.Context(), sample())
	_, err3 := v.List(t.Context())
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, redisconn.ErrUnavailable) {
			t.Error(err)
		}
	}
}

// All operations work in a cluster, which rejects commands and scripts across slots.
func TestInventory_Cluster(t *testing.T) {
	t.Parallel()
	b := newClusterRedis(t)
	v := &testInventory{Inventory: NewInventory(b.Commands(), b.Keys()), t: t, b: b}
	if c, err := v.Seed(t.Context(), sample()); err != nil || c.Instances.Added != 4 {
		t.Fatalf("got %+v and error %v", c, err)
	}
	v.recordMove("h1", "c1/i1", "s2")
	if f := v.find("h1", "c1", "i1", "s1"); f.Source.ID != "s2" || f.Destination.ID != "s1" {
		t.Errorf("got %+v", f)
	}
	f := sample()
	f.Servers, f.Containers = f.Servers[:2], f.Containers[:3]
	if c := v.importFile(f); c != (Changes{
		Servers: ChangeCount{Removed: 1}, Containers: ChangeCount{Removed: 1}, Instances: ChangeCount{Removed: 1},
	}) {
		t.Errorf("got %+v", c)
	}
	if got := v.listServers(); got != "c1/i1@s2(s1) c1/i2@s2 c2/j1@s1" || v.version() != 2 {
		t.Error(got)
	}
}

// Nodes that start at the same time can import the same file concurrently.
func TestSeed_Concurrent(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := v.Seed(t.Context(), sample()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := v.listServers(); got != "c1/i1@s1 c1/i2@s2 c2/j1@s1 c4/k1@s3" || v.version() != 1 {
		t.Error(got, v.version())
	}
}

// A driver without servers stops all instances, so Servers imports an inventory again that Redis has lost. It does not undo an
// import without servers by another node.
func TestServers_LostInventory(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.SetFile(sample())
	list := func() int {
		t.Helper()
		servers, err := v.Servers(t.Context())
		v.must(err)
		return len(servers)
	}
	if _, err := v.Seed(t.Context(), sample()); err != nil || list() != len(sample().Servers) {
		t.Fatalf("got %d servers and error %v", list(), err)
	}
	v.must(v.client.FlushDB(t.Context()).Err())
	if n := list(); n != len(sample().Servers) {
		t.Errorf("got %d servers after Redis had lost the inventory", n)
	}
	if c, err := v.Seed(t.Context(), &File{}); err != nil || c.Servers.Removed != len(sample().Servers) {
		t.Fatalf("got %+v and error %v", c, err)
	}
	if n := list(); n != 0 {
		t.Errorf("got %d servers after another node had removed them", n)
	}
}
