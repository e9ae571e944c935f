package migration

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestImportChanges(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	first := Changes{Servers: ChangeCount{Added: 3}, Containers: ChangeCount{Added: 4}, Instances: ChangeCount{Added: 4}}
	if c := v.imports(sample()); c != first || v.version() != 1 {
		t.Errorf("%+v", c)
	}
	if c := v.imports(sample()); c.Any() || v.version() != 1 {
		t.Errorf("the same again: %+v", c)
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
	if c := v.imports(f); c != want || v.version() != 2 {
		t.Errorf("%+v", c)
	}
	if got := v.where(); got != "c1/i1@s2 c1/i3@s4 c2/j1@s1 c4/k1@s4" {
		t.Error(got)
	}
	if c := v.imports(&File{}); c.Servers.Removed != 3 || c.Containers.Removed != 4 || v.where() != "" || v.version() != 3 {
		t.Errorf("%+v", c)
	}
}

func TestImportAndMoved(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.imports(sample())
	v.moves("h1", "c1/i1", "s2")
	v.moves("h2", "c2/j1", "s3")
	v.moves("h9", "c9/x", "s1")
	if c := v.imports(sample()); c != (Changes{MovesCleared: 1}) { // of c9, which nobody knows
		t.Errorf("%+v", c)
	}
	if got := v.where(); got != "c1/i1@s2(s1) c1/i2@s2 c2/j1@s3(s1) c4/k1@s3" {
		t.Error(got)
	}
	f := sample()
	f.Servers = f.Servers[:2]                  // j1's server is gone
	f.Containers[3].Instances[0].Server = "s1" // k1 was there too
	f.Containers[0].Instances[0].Server = "s2" // the file says what the job did
	if c := v.imports(f); c.MovesCleared != 2 || c.Instances.Changed != 2 {
		t.Errorf("%+v", c)
	}
	if got := v.where(); got != "c1/i1@s2 c1/i2@s2 c2/j1@s1 c4/k1@s1" {
		t.Error(got)
	}
}

func TestImportIsRefusedWhileAJobIsAtWork(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.imports(sample())
	v.moves("h1", "c1/i2", "s1")
	v.migrates("h1", "c1/i1", "job")
	for name, change := range map[string]func(f *File){
		"container removed":         func(f *File) { f.Containers = f.Containers[1:] },
		"instance removed":          func(f *File) { f.Containers[0].Instances = f.Containers[0].Instances[1:] },
		"other instance removed":    func(f *File) { f.Containers[0].Instances = f.Containers[0].Instances[:1] },
		"instance moved":            func(f *File) { f.Containers[0].Instances[0].Server = "s3" },
		"server of a moved is gone": func(f *File) { f.Servers = f.Servers[1:]; f.Containers[0].Instances[0].Server = "s2" },
		"hub":                       func(f *File) { f.Containers[0].Hub = "h4" },
	} {
		f := sample()
		f.Containers[3].Instances[0].Server = "s2" // what is allowed must not happen either
		change(f)
		v.SetFile(f)
		_, err := v.Import(t.Context(), f)
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "c1/i1") && !strings.Contains(err.Error(), "c1 gets another hub") {
			t.Errorf("%s: %v", name, err)
		}
		if got := v.where(); got != "c1/i1@s1 c1/i2@s1(s2) c2/j1@s1 c4/k1@s3" || v.version() != 1 {
			t.Errorf("%s: %s", name, got)
		}
	}
	f := sample()
	f.Containers[0].Account, f.Containers[1].Instances[0].Server = "other", "s3"
	f.Containers[0].Instances[1].Server = "s3" // it is on s1, where a job has moved it
	f.Containers[0].Instances = append(f.Containers[0].Instances, FileInstance{"i3", "s1"})
	v.imports(f)
	if got := v.where(); got != "c1/i1@s1 c1/i2@s1(s3) c1/i3@s1 c2/j1@s3 c4/k1@s3" {
		t.Error(got)
	}
	v.migrates("h1", "c1/i1", "")
	v.imports(&File{})
}

func TestADestinationIsNotRemoved(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.imports(sample())
	p := v.keys.Partition("h1")
	v.must(v.client.HSet(t.Context(), v.keys.Job("job", p), "order", `{"id":"job","destination":"s2"}`).Err())
	v.migrates("h1", "c1/i1", "job")
	f := sample()
	f.Servers = []relay.Server{f.Servers[0], f.Servers[2]}
	f.Containers[0].Instances = f.Containers[0].Instances[:1]
	var refused *RefusedError
	v.SetFile(f)
	if _, err := v.Import(t.Context(), f); !errors.As(err, &refused) || !reflect.DeepEqual(refused.Instances, []string{"c1/i1"}) ||
		!strings.Contains(err.Error(), "the server s2") {
		t.Error(err)
	}
	f.Servers = sample().Servers[:2]
	f.Containers = append(sample().Containers[:3], container("c4", "h4", "k1@s1"))
	v.imports(f) // of others any may go
	if got := v.where(); got != "c1/i1@s1 c1/i2@s2 c2/j1@s1 c4/k1@s1" {
		t.Error(got)
	}
}

func TestAHubIsNotChangedUnderAMovedInstance(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.imports(sample())
	v.moves("h1", "c1/i1", "s2")
	f := sample()
	f.Containers[0].Hub = "h2"
	var refused *RefusedError
	v.SetFile(f)
	if _, err := v.Import(t.Context(), f); !errors.As(err, &refused) || !reflect.DeepEqual(refused.Instances, []string{"c1/i1"}) ||
		!strings.Contains(err.Error(), "s2") {
		t.Error(err)
	}
	f.Containers[0].Instances[0].Server = "s2"
	v.imports(f)
	if got := v.found("h2", "c1", "i1", "s1"); got.Source.ID != "s2" {
		t.Errorf("%+v", got)
	}
	if _, err := v.Find(t.Context(), "h1", "c1", "i1", "s1"); !errors.Is(err, ErrNoContainer) {
		t.Error(err)
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
		t.Error("nothing was seeded")
	}
	f := sample()
	f.Containers = f.Containers[:1]
	v.imports(f)
	if c := seed(sample()); c.Any() || v.where() != "c1/i1@s1 c1/i2@s2" {
		t.Errorf("an import was undone: %+v", c)
	}
	f = sample()
	f.Containers = f.Containers[:2]
	if c := seed(f); !c.Any() || v.where() != "c1/i1@s1 c1/i2@s2 c2/j1@s1" {
		t.Errorf("another file: %+v", c)
	}
	if c := seed(sample()); !c.Any() {
		t.Error("the first file is another one now")
	}
}

// An import that was broken off anywhere is completed by the next, which tells the nodes, even where it finds nothing to do.
func TestBrokenOff(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.imports(sample())
	f := sample()
	f.Servers[0] = server("s1", "p", `{"path":"/b"}`)
	f.Containers[0].Instances[0].Server = "s2"
	i, err := v.newImport(f)
	v.must(err)
	i.number = 2
	v.must(v.client.HSet(t.Context(), v.keys.InventoryImports(), "begun", 2).Err())
	keys := []string{v.keys.InventoryImports(), v.keys.Servers()}
	v.must(i.runGlobalScript(t.Context(), serversScript, keys, append([]any{i.number}, i.servers...)))
	if _, err := i.applyPartitions(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if v.version() != 1 {
		t.Error("it was not broken off")
	}
	if c := v.imports(f); c.Any() || v.version() != 2 {
		t.Errorf("%+v, version %d", c, v.version())
	}
	if v.imports(f); v.version() != 2 {
		t.Error("it is done")
	}
}

// A job that begins behind the first look refuses its partition as a whole.
func TestAJobThatBeginsMeanwhile(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	v.imports(sample())
	v.migrates("h1", "c1/i1", "job")
	f := sample()
	f.Containers = nil
	i, err := v.newImport(f)
	v.must(err)
	i.number = 9
	var refused *RefusedError
	if _, err := i.applyPartitions(t.Context(), true); !errors.As(err, &refused) || !reflect.DeepEqual(refused.Instances, []string{"c1/i1"}) {
		t.Error(err)
	}
	if got := v.found("h1", "c1", "i2", ""); got.Source.ID != "s2" {
		t.Errorf("%+v", got)
	}
}

// A slow import changes nothing after a later one was begun, in no partition.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	v := newInventory(t)
	slow, err := v.newImport(&File{})
	v.must(err)
	slow.number = 1
	v.must(v.client.HSet(t.Context(), v.keys.InventoryImports(), "begun", 1).Err())
	v.imports(sample())
	if _, err := slow.run(t.Context(), false); !errors.Is(err, ErrImportSuperseded) {
		t.Error(err)
	}
	for _, apply := range []bool{false, true} {
		if _, err := slow.applyPartitions(t.Context(), apply); !errors.Is(err, ErrImportSuperseded) {
			t.Error(err)
		}
	}
	keys := []string{v.keys.InventoryImports(), v.keys.Servers(), v.keys.InventoryVersion(), v.keys.InventorySeed()}
	for _, s := range []string{serversSource, finishSource} {
		n, err := v.client.Eval(t.Context(), s, keys, slow.number, "").Int()
		if err != nil || n != 0 {
			t.Error(n, err)
		}
	}
	if got := v.where(); got != "c1/i1@s1 c1/i2@s2 c2/j1@s1 c4/k1@s3" {
		t.Error(got)
	}
}
