package migration

import (
	"cmp"
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// ErrImportSuperseded is returned by an import after which another one was begun, of something else: that one counts.
var ErrImportSuperseded = errors.New("another import was begun after this one and has taken its place: look with hubrelay inventory list, and import again if need be")

// RefusedError says why an inventory cannot be imported now, although there is nothing wrong with it.
type RefusedError struct {
	// Reason is a sentence that says what to do.
	Reason string
	// Instances are those that stand in the way, each as <container>/<instance>.
	Instances []string
}

func (e *RefusedError) Error() string { return e.Reason }

// Changes is what an import has changed.
type Changes struct {
	Servers    ChangeCount
	Containers ChangeCount
	Instances  ChangeCount
	// MovesCleared counts the instances of which it was forgotten that a job has moved them, since the file says the same, or
	// the server to which they were moved is gone.
	MovesCleared int
}

// ChangeCount counts what has changed of one sort of things.
type ChangeCount struct {
	Added, Changed, Removed int
}

func (c ChangeCount) nonZero() bool { return c != ChangeCount{} }

// Any tells whether anything has changed.
func (c Changes) Any() bool {
	return c.Servers.nonZero() || c.Containers.nonZero() || c.Instances.nonZero() || c.MovesCleared > 0
}

var (
	//go:embed scripts/import_begin.lua
	beginSource string
	//go:embed scripts/import_servers.lua
	serversSource string
	//go:embed scripts/import.lua
	importSource string
	//go:embed scripts/import_finish.lua
	finishSource string

	beginScript   = redis.NewScript(beginSource)
	serversScript = redis.NewScript(serversSource)
	importScript  = redis.NewScript(importSource)
	finishScript  = redis.NewScript(finishSource)
)

// Import makes the inventory what the file says; what the file does not name is removed. An instance that a job has moved
// stays where it is, until the file says the same or that server is gone. An import with other servers than those of the
// operator's file is refused with a [ServersError]; one by [ParseImport] may leave them out.
//
// It is refused with a [RefusedError] where it would remove or move an instance of a container that a job is moving
// instances of, or a server that a job is moving an instance to. Of imports at the same time the one that was begun last
// counts, and the others return [ErrImportSuperseded]. One that was broken off is completed by importing the same again.
func (v *Inventory) Import(ctx context.Context, f *File) (Changes, error) {
	f, err := v.withOperatorServers(f)
	if err != nil {
		return Changes{}, err
	}
	return v.runImport(ctx, f, false)
}

// Seed imports the operator's file, servers included. It does nothing if the same file was seeded last, so it does not undo
// an Import from then on. Several nodes may seed the same at once. It does not call [Inventory.SetFile].
func (v *Inventory) Seed(ctx context.Context, f *File) (Changes, error) {
	return v.runImport(ctx, f, true)
}

func (v *Inventory) runImport(ctx context.Context, f *File, seed bool) (Changes, error) {
	i, err := v.newImport(f)
	if err != nil {
		return Changes{}, err
	}
	keys := []string{v.keys.InventoryImports(), v.keys.InventorySeed()}
	i.number, err = beginScript.Run(ctx, v.client, keys, i.digest, boolArg(seed)).Int64()
	if err != nil {
		return Changes{}, redisconn.WrapError("begin to import an inventory", err)
	}
	if i.number == 0 {
		return Changes{}, nil
	}
	changes, err := i.run(ctx, seed)
	if seed && errors.Is(err, ErrImportSuperseded) {
		// Another node that starts with the same does our work too.
		last, e := v.client.HGet(ctx, v.keys.InventoryImports(), "digest").Result()
		if e == nil && last == i.digest {
			return changes, nil
		}
	}
	return changes, err
}

// importRun is one import.
type importRun struct {
	*Inventory
	file   *File
	digest string
	number int64

	servers    []any   // id and value of each
	serverIDs  []any   // in the same order
	containers [][]any // id and value of each, by partition
	instances  [][]any // field and server of each, by partition
}

func (v *Inventory) newImport(f *File) (*importRun, error) {
	n := v.keys.Partitions()
	i := &importRun{Inventory: v, file: f, containers: make([][]any, n), instances: make([][]any, n)}
	var err error
	if i.digest, err = f.contentHash(); err != nil {
		return nil, err
	}
	for _, s := range f.Servers {
		value, err := json.Marshal(storeServer(s))
		if err != nil {
			return nil, fmt.Errorf("encode the server %q of the inventory: %w", s.ID, err)
		}
		i.servers, i.serverIDs = append(i.servers, s.ID, value), append(i.serverIDs, s.ID)
	}
	for _, c := range f.Containers {
		value, err := json.Marshal(storedContainer{Hub: c.Hub, Account: c.Account, Environment: c.Environment, Stateful: c.Stateful})
		if err != nil {
			return nil, fmt.Errorf("encode the container %q of the inventory: %w", c.ID, err)
		}
		p := v.keys.Partition(c.Hub)
		i.containers[p] = append(i.containers[p], c.ID, value)
		for _, instance := range c.Instances {
			i.instances[p] = append(i.instances[p], InstanceField(c.ID, instance.ID), instance.Server)
		}
	}
	return i, nil
}

// run looks first whether anything forbids the import, so that it is done as a whole or not at all. A job that begins
// between the look and the change may still refuse a part; importing again completes it then.
func (i *importRun) run(ctx context.Context, seed bool) (Changes, error) {
	is, err := i.readSnapshot(ctx)
	if err != nil {
		return Changes{}, err
	}
	if err := errors.Join(i.checkHubChanges(is), i.checkRemovedServers(ctx, is)); err != nil {
		return Changes{}, err
	}
	servers := i.serverChanges(is)
	changes, err := i.applyPartitions(ctx, false)
	if err != nil {
		return Changes{}, err
	}
	if changes.Servers = servers; changes.Any() {
		keys := []string{i.keys.InventoryImports(), i.keys.Servers()}
		if err := i.runGlobalScript(ctx, serversScript, keys, append([]any{i.number}, i.servers...)); err != nil {
			return Changes{}, err
		}
		if changes, err = i.applyPartitions(ctx, true); err != nil {
			return Changes{}, err
		}
		changes.Servers = servers
	}
	stored := ""
	if seed {
		stored = i.digest
	}
	keys := []string{i.keys.InventoryImports(), i.keys.Servers(), i.keys.InventoryVersion(), i.keys.InventorySeed()}
	return changes, i.runGlobalScript(ctx, finishScript, keys, append([]any{i.number, stored}, i.serverIDs...))
}

func (i *importRun) serverChanges(is *inventorySnapshot) ChangeCount {
	var c ChangeCount
	for _, s := range i.file.Servers {
		old, ok := is.servers[s.ID]
		switch {
		case !ok:
			c.Added++
		case old != storeServer(s):
			c.Changed++
		}
	}
	c.Removed = len(is.servers) + c.Added - len(i.file.Servers)
	return c
}

// checkHubChanges refuses to give a container to another hub while it is only known here where one of its instances is: its hub
// decides in which partition that is kept.
func (i *importRun) checkHubChanges(is *inventorySnapshot) error {
	for _, c := range i.file.Containers {
		old, ok := is.containers[c.ID]
		if !ok || old.Hub == c.Hub {
			continue
		}
		for _, instance := range c.Instances {
			field := InstanceField(c.ID, instance.ID)
			if moved := is.moved[field]; moved != "" && moved != instance.Server && i.hasServer(moved) {
				return &RefusedError{Instances: []string{field}, Reason: fmt.Sprintf(
					"the container %s gets another hub, and a job has moved its instance %s to %s: name that server in the file", c.ID, instance.ID, moved)}
			}
		}
	}
	return nil
}

// checkRemovedServers refuses to remove a server to which a job is moving an instance.
func (i *importRun) checkRemovedServers(ctx context.Context, is *inventorySnapshot) error {
	var busy []string
	var orders [][2]string
	for field, id := range is.migrating {
		name, _, _ := strings.Cut(field, "/")
		if c, ok := is.containers[name]; ok {
			busy = append(busy, field)
			orders = append(orders, [2]string{i.keys.Job(id, i.keys.Partition(c.Hub)), "order"})
		}
	}
	if len(orders) == 0 {
		return nil
	}
	texts, err := i.readFields(ctx, orders)
	if err != nil {
		return err
	}
	for n, text := range texts {
		var o jobSpec
		if json.Unmarshal([]byte(text), &o) == nil && !i.hasServer(o.Destination) {
			return &RefusedError{Instances: busy[n : n+1], Reason: fmt.Sprintf(
				"the file removes the server %s, to which a job is moving %s: put the server back until the job is over", o.Destination, busy[n])}
		}
	}
	return nil
}

// hasServer tells whether the file has a server.
func (i *importRun) hasServer(server string) bool {
	_, found := slices.BinarySearchFunc(i.file.Servers, server, func(s relay.Server, id string) int { return cmp.Compare(s.ID, id) })
	return found
}

// runGlobalScript runs a script on what belongs to no partition.
func (i *importRun) runGlobalScript(ctx context.Context, script *redis.Script, keys []string, args []any) error {
	n, err := script.Run(ctx, i.client, keys, args...).Int()
	if err == nil && n == 0 {
		return ErrImportSuperseded
	}
	return redisconn.WrapError("import the servers of an inventory", err)
}

// applyPartitions changes all partitions, or only tells what that would change.
func (i *importRun) applyPartitions(ctx context.Context, apply bool) (Changes, error) {
	var sum Changes
	var busy []string
	for p := range i.keys.Partitions() {
		keys := []string{i.keys.Containers(p), i.keys.Instances(p), i.keys.MigratedTo(p), i.keys.ActiveMigrations(p), i.keys.LastImport(p)}
		args := append([]any{i.number, boolArg(apply), len(i.serverIDs)}, i.serverIDs...)
		args = append(append(args, len(i.containers[p])/2), i.containers[p]...)
		reply, err := importScript.Run(ctx, i.client, keys, append(args, i.instances[p]...)...).Slice()
		if err == nil {
			busy, err = sum.add(reply, busy)
		}
		if err != nil {
			return Changes{}, redisconn.WrapError("import an inventory", err)
		}
	}
	if len(busy) > 0 {
		slices.Sort(busy)
		return Changes{}, &RefusedError{Instances: busy, Reason: "the file removes or moves instances of containers that a job is at work on (" +
			joinLimited(busy) + "): import it again when the job is over"}
	}
	return sum, nil
}

var errReply = errors.New("redis answered something unexpected")

// add adds what a partition's script replied, and to busy the instances that forbid the import.
func (c *Changes) add(reply []any, busy []string) ([]string, error) {
	const counts = 8
	n := make([]int, 0, counts)
	for _, r := range reply {
		switch r := r.(type) {
		case int64:
			n = append(n, int(r))
		case string:
			busy = append(busy, r)
		}
	}
	switch {
	case len(n) == 1 && n[0] == 0:
		return busy, ErrImportSuperseded
	case len(n) != counts:
		return busy, errReply
	}
	c.Containers.add(n[1:4])
	c.Instances.add(n[4:7])
	c.MovesCleared += n[7]
	return busy, nil
}

func (c *ChangeCount) add(n []int) {
	c.Added, c.Changed, c.Removed = c.Added+n[0], c.Changed+n[1], c.Removed+n[2]
}

// joinLimited names the first few.
func joinLimited(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(len(names)-most) + " more"
}

func boolArg(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
