package migration

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestImport_CountsChanges(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	first := Changes{
		Servers: ChangeCount{Added: 3}, Containers: ChangeCount{Added: 4}, Instances: ChangeCount{Added: 4},
	}
	if c := v.importFile(sample()); c != first || v.version() != 1 {
		t.Errorf("got %+v", c)
	}
	if c := v.importFile(sample()); c.Any() || v.version() != 1 {
		t.Errorf("second import: got %+v", c)
	}
	f := sample()
	f.Servers[0] = server("s1", "p", `{"path":"/b"}`)
	f.Servers[2] = server("s4", "q", `{}`)
	f.Containers[0].Account = "other"
	f.Containers[0].Instances = []FileInstance{{"i1", "s2"}, {"i3", "s4"}}
	f.Containers[3].Instances[0].Server = "s4"
	want := Changes{
		Servers: ChangeCount{Added: 1, Changed: 1, Removed: 1}, Containers: ChangeCount{Changed: 1},
		Instances: ChangeCount{Added: 1, Changed: 2, Removed: 1},
	}
	if c := v.importFile(f); c != want || v.version() != 2 {
		t.Errorf("got %+v", c)
	}
	if got := v.listServers(); got != "c1/i1@s2 c1/i3@s4 c2/j1@s1 c4/k1@s4" {
		t.Error(got)
	}
	if c := v.importFile(&File{}); c.Servers.Removed != 3 || c.Containers.Removed != 4 || v.listServers() != "" ||
		v.version() != 3 {
		t.Errorf("got %+v", c)
	}
}

func TestImport_KeepsMoves(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	v.recordMove("h1", "c1/i1", "s2")
	v.recordMove("h2", "c2/j1", "s3")
	v.recordMove("h9", "c9/x", "s1")
	if c := v.importFile(sample()); c != (Changes{MovesCleared: 1}) { // the move of c9, an unknown instance
		t.Errorf("got %+v", c)
	}
	if got := v.listServers(); got != "c1/i1@s2(s1) c1/i2@s2 c2/j1@s3(s1) c4/k1@s3" {
		t.Error(got)
	}
	f := sample()
	f.Servers = f.Servers[:2]                  // the server of j1 is removed
	f.Containers[3].Instances[0].Server = "s1" // k1 was on the same server
	f.Containers[0].Instances[0].Server = "s2" // the file agrees with the job
	if c := v.importFile(f); c.MovesCleared != 2 || c.Instances.Changed != 2 {
		t.Errorf("got %+v", c)
	}
	if got := v.listServers(); got != "c1/i1@s2 c1/i2@s2 c2/j1@s1 c4/k1@s1" {
		t.Error(got)
	}
}

func TestImport_RejectedByRunningJob(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	v.recordMove("h1", "c1/i2", "s1")
	v.setMigrating("h1", "c1/i1", "job")
	for name, change := range map[string]func(f *File){
		"container removed":      func(f *File) { f.Containers = f.Containers[1:] },
		"instance removed":       func(f *File) { f.Containers[0].Instances = f.Containers[0].Instances[1:] },
		"other instance removed": func(f *File) { f.Containers[0].Instances = f.Containers[0].Instances[:1] },
		"instance moved":         func(f *File) { f.Containers[0].Instances[0].Server = "s3" },
		"server of a moved instance removed": func(f *File) {
			f.Servers = f.Servers[1:]
			f.Containers[0].Instances[0].Server = "s2"
		},
		"hub changed": func(f *File) { f.Containers[0].Hub = "h4" },
	} {
		f := sample()
		f.Containers[3].Instances[0].Server = "s2" // allowed changes must not be applied either
		change(f)
		v.SetFile(f)
		_, err := v.Import(t.Context(), f)
		var rejected *RejectedError
		if !errors.As(err, &rejected) ||
			!strings.Contains(err.Error(), "c1/i1") && !strings.Contains(err.Error(), "hub of the instance i2") {
			t.Errorf("%s: got error %v, want a RejectedError", name, err)
		}
		if got := v.listServers(); got != "c1/i1@s1 c1/i2@s1(s2) c2/j1@s1 c4/k1@s3" || v.version() != 1 {
			t.Errorf("%s: got %s, want no change", name, got)
		}
	}
	f := sample()
	f.Containers[0].Account, f.Containers[1].Instances[0].Server = "other", "s3"
	f.Containers[0].Instances[1].Server = "s3" // has no effect, because a job moved the instance to s1
	f.Containers[0].Instances = append(f.Containers[0].Instances, FileInstance{"i3", "s1"})
	v.importFile(f)
	if got := v.listServers(); got != "c1/i1@s1 c1/i2@s1(s3) c1/i3@s1 c2/j1@s3 c4/k1@s3" {
		t.Error(got)
	}
	v.setMigrating("h1", "c1/i1", "")
	v.importFile(&File{})
}

func TestImport_KeepsDestinationOfRunningJob(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	p := v.keys.Partition("h1")
	v.must(v.client.HSet(t.Context(), v.keys.job("job", p), "order", `{"id":"job","destination":"s2"}`).Err())
	v.setMigrating("h1", "c1/i1", "job")
	f := sample()
	f.Servers = []relay.Server{f.Servers[0], f.Servers[2]}
	f.Containers[0].Instances = f.Containers[0].Instances[:1]
	var rejected *RejectedError
	v.SetFile(f)
	if _, err := v.Import(t.Context(), f); !errors.As(err, &rejected) ||
		!reflect.DeepEqual(rejected.Instances, []string{"c1/i1"}) ||
		!strings.Contains(err.Error(), "removes server s2") {
		t.Error(err)
	}
	f.Servers = sample().Servers[:2]
	f.Containers = append(sample().Containers[:3], container("c4", "h4", "k1@s1"))
	v.importFile(f) // it is possible to remove other servers
	if got := v.listServers(); got != "c1/i1@s1 c1/i2@s2 c2/j1@s1 c4/k1@s1" {
		t.Error(got)
	}
}

func TestImport_KeepsSettingsOfServersOfRunningJob(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	p := v.keys.Partition("h1")
	order := `{"id":"job","source":"s1","destination":"s2"}`
	v.must(v.client.HSet(t.Context(), v.keys.job("job", p), "order", order, "state", "running").Err())
	v.setMigrating("h1", "c1/i1", "job")
	for n, id := range []string{"s1", "s2"} {
		f := sample()
		f.Servers[n].Settings = []byte(`{"path":"/elsewhere"}`)
		var rejected *RejectedError
		v.SetFile(f)
		if _, err := v.Import(t.Context(), f); !errors.As(err, &rejected) ||
			!reflect.DeepEqual(rejected.Instances, []string{"c1/i1"}) ||
			!strings.Contains(err.Error(), "changes the settings of server "+id) {
			t.Errorf("new settings of %s: got error %v, want a RejectedError", id, err)
		}
	}
	f := sample()
	f.Servers[2].Settings = []byte(`{"path":"/elsewhere"}`)
	v.importFile(f) // no job uses this server
	v.setMigrating("h1", "c1/i1", "")
	f.Servers[0].Settings = []byte(`{"path":"/elsewhere"}`)
	v.importFile(f)
}

func TestImport_RejectsNewPlaceOfMovedInstance(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change         func(*Container)
		hub, container string
	}{
		"hub":       {func(c *Container) { c.Hub = "h2" }, "h2", "c1"},
		"container": {func(c *Container) { c.ID = "c1-new" }, "h1", "c1-new"},
		"both":      {func(c *Container) { c.Hub, c.ID = "h2", "c1-new" }, "h2", "c1-new"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newInventory(t)
			v.importFile(sample())
			v.recordMove("h1", "c1/i1", "s2")
			f := sample()
			tc.change(&f.Containers[0].Container)
			var rejected *RejectedError
			v.SetFile(f)
			if _, err := v.Import(t.Context(), f); !errors.As(err, &rejected) ||
				!reflect.DeepEqual(rejected.Instances, []string{"c1/i1"}) ||
				!strings.Contains(err.Error(), "s2") {
				t.Error(err)
			}
			f.Containers[0].Instances[0].Server = "s2"
			v.importFile(f)
			if got := v.find(tc.hub, tc.container, "i1", "s1"); got.Source.ID != "s2" {
				t.Errorf("got %+v", got)
			}
			if _, err := v.Find(t.Context(), "h1", "c1", "i1", "s1"); !errors.Is(err, ErrNoContainer) {
				t.Error(err)
			}
		})
	}
}

func TestSeed(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	seed := func(f *File) Changes {
		c, err := v.Seed(t.Context(), f)
		v.must(err)
		return c
	}
	if c := seed(sample()); !c.Any() {
		t.Error("Seed changed nothing")
	}
	f := sample()
	f.Containers = f.Containers[:1]
	v.importFile(f)
	if c := seed(sample()); c.Any() || v.listServers() != "c1/i1@s1 c1/i2@s2" {
		t.Errorf("Seed undid an import: %+v", c)
	}
	f = sample()
	f.Containers = f.Containers[:2]
	if c := seed(f); !c.Any() || v.listServers() != "c1/i1@s1 c1/i2@s2 c2/j1@s1" {
		t.Errorf("changed file: got %+v", c)
	}
	if c := seed(sample()); !c.Any() {
		t.Error("the first file was not seeded again")
	}
}

// interruptImport imports a file without the last step.
func (v *testInventory) interruptImport(f *File, seed bool) {
	v.t.Helper()
	i, err := v.newImport(f)
	v.must(err)
	i.number, err = v.client.HIncrBy(v.t.Context(), v.keys.inventoryImports(), "begun", 1).Result()
	v.must(err)
	keys := []string{v.keys.inventoryImports(), v.keys.servers()}
	v.must(i.runGlobalScript(v.t.Context(), serversScript, keys, append([]any{i.number, boolArg(seed)}, i.servers...)))
	_, err = i.applyPartitions(v.t.Context(), nil, true)
	v.must(err)
}

// An operator restores the previous file after the import of another one was interrupted.
func TestSeed_UndoesInterruptedImport(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	_, err := v.Seed(t.Context(), sample())
	v.must(err)
	want := v.listServers()
	f := sample()
	f.Containers = f.Containers[:1]
	v.interruptImport(f, true)
	if got := v.listServers(); got == want {
		t.Fatalf("the interrupted import changed nothing: %s", got)
	}
	if _, err := v.Seed(t.Context(), sample()); err != nil || v.listServers() != want {
		t.Errorf("got %s, %v, want %s", v.listServers(), err, want)
	}
}

// A node that starts after an interrupted `inventory import` does not undo earlier ones.
func TestSeed_KeepsImports(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	_, err := v.Seed(t.Context(), sample())
	v.must(err)
	f := sample()
	f.Containers = f.Containers[:1]
	v.importFile(f)
	want := v.listServers()
	v.interruptImport(f, false)
	if _, err := v.Seed(t.Context(), sample()); err != nil || v.listServers() != want {
		t.Errorf("got %s, %v, want %s", v.listServers(), err, want)
	}
	for _, want := range []bool{true, false} {
		if unfinished, err := v.IsImportUnfinished(t.Context()); err != nil || unfinished != want {
			t.Errorf("the import is unfinished: %t, %v, want %t", unfinished, err, want)
		}
		v.importFile(f)
	}
}

// The next import completes an interrupted import and increases the version, even if it finds nothing to change.
func TestImport_CompletesInterruptedImport(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	f := sample()
	f.Servers[0] = server("s1", "p", `{"path":"/b"}`)
	f.Containers[0].Instances[0].Server = "s2"
	v.interruptImport(f, false)
	if v.version() != 1 {
		t.Error("the interrupted import already changed the version")
	}
	if c := v.importFile(f); c.Any() || v.version() != 2 {
		t.Errorf("got changes %+v, version %d", c, v.version())
	}
	if v.importFile(f); v.version() != 2 {
		t.Error("the version changed again")
	}
}

// If a job starts after the first check, its partition rejects the import as a whole.
func TestImport_JobStartsAfterCheck(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	v.setMigrating("h1", "c1/i1", "job")
	f := sample()
	f.Containers = nil
	i, err := v.newImport(f)
	v.must(err)
	i.number, err = v.client.HIncrBy(t.Context(), v.keys.inventoryImports(), "begun", 1).Result()
	v.must(err)
	var rejected *RejectedError
	if _, err := i.applyPartitions(t.Context(), nil, true); !errors.As(err, &rejected) ||
		!reflect.DeepEqual(rejected.Instances, []string{"c1/i1"}) {
		t.Error(err)
	}
	if got := v.find("h1", "c1", "i2", ""); got.Source.ID != "s2" {
		t.Errorf("got %+v", got)
	}
}

// If a job moves an instance after the check, the import keeps the move.
func TestImport_JobEndsAfterCheck(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	f := sample()
	f.Containers[0].ID = "c1-new"
	i, err := v.newImport(f)
	v.must(err)
	i.number, err = v.client.HIncrBy(t.Context(), v.keys.inventoryImports(), "begun", 1).Result()
	v.must(err)
	v.recordMove("h1", "c1/i1", "s2")
	for _, moved := range []map[string]string{nil, {"c1/i1": "s1"}} {
		if _, err := i.applyPartitions(t.Context(), moved, true); !errors.Is(err, errMoved) {
			t.Errorf("checked moves %v: got error %v, want %v", moved, err, errMoved)
		}
	}
	if got := v.find("h1", "c1", "i1", ""); got.Source.ID != "s2" {
		t.Errorf("got %+v", got)
	}
	_, err = i.applyPartitions(t.Context(), map[string]string{"c1/i1": "s2"}, true)
	v.must(err)
	if got := v.find("h1", "c1-new", "i1", ""); got.Source.ID != "s1" {
		t.Errorf("got %+v", got)
	}
}

// An import succeeds after Redis lost the number of the last one, while the partitions still have it.
func TestImport_LostNumber(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.importFile(sample())
	f := sample()
	f.Containers[0].Instances[0].Server = "s3"
	v.importFile(f)
	v.must(v.client.Del(t.Context(), v.keys.inventoryImports()).Err())
	f.Containers[0].Instances[0].Server = "s2"
	if c := v.importFile(f); c.Instances.Changed != 1 {
		t.Errorf("got changes %+v, want one changed instance", c)
	}
}

// A slow import changes nothing in any partition after a later one has started.
func TestImport_Superseded(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	slow, err := v.newImport(&File{})
	v.must(err)
	slow.number = 1
	v.must(v.client.HSet(t.Context(), v.keys.inventoryImports(), "begun", 1).Err())
	v.importFile(sample())
	if _, err := slow.run(t.Context(), false); !errors.Is(err, ErrImportSuperseded) {
		t.Error(err)
	}
	for _, apply := range []bool{false, true} {
		if _, err := slow.applyPartitions(t.Context(), nil, apply); !errors.Is(err, ErrImportSuperseded) {
			t.Error(err)
		}
	}
	keys := []string{v.keys.inventoryImports(), v.keys.servers(), v.keys.inventoryVersion(), v.keys.inventorySeed()}
	for _, s := range []string{serversSource, finishSource} {
		n, err := v.client.Eval(t.Context(), s, keys, slow.number, "").Int()
		if err != nil || n != 0 {
			t.Error(n, err)
		}
	}
	if got := v.listServers(); got != "c1/i1@s1 c1/i2@s2 c2/j1@s1 c4/k1@s3" {
		t.Error(got)
	}
}
