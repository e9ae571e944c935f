package migration

import (
	"context"
	_ "embed" // for the scripts
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// ErrImportSuperseded is returned if another import started later. The later import wins.
var ErrImportSuperseded = errors.New("a later import has replaced this one; check with 'hubrelay inventory list', " +
	"and import again if required")

// RejectedError reports that a valid inventory cannot be imported at present.
type RejectedError struct {
	// Reason explains the problem and how to fix it.
	Reason string
	// Instances are the instances that prevent the import, each as <container>/<instance>.
	Instances []string
	// changesSettings is set if the file has new settings of a server of a job that has begun.
	changesSettings bool
}

func (e *RejectedError) Error() string { return e.Reason }

// Changes counts what an import has changed.
type Changes struct {
	Servers    ChangeCount
	Containers ChangeCount
	Instances  ChangeCount
	// MovesCleared is the number of recorded moves that were cleared, because the file now names the same server or
	// that server was removed.
	MovesCleared int
}

// ChangeCount counts changes of one kind of object.
type ChangeCount struct {
	Added, Changed, Removed int
}

func (c ChangeCount) isNonZero() bool { return c != ChangeCount{} }

// Any reports whether anything has changed.
func (c Changes) Any() bool {
	return c.Servers.isNonZero() || c.Containers.isNonZero() || c.Instances.isNonZero() || c.MovesCleared > 0
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

	beginScript   = redisconn.NewScript(beginSource)
	serversScript = redisconn.NewScript(serversSource)
	importScript  = redisconn.NewScript(importSource)
	finishScript  = redisconn.NewScript(finishSource)
)

// Import replaces the inventory with the content of the file. It removes objects that are not in the file. An instance
// that a job has moved stays on its server until the file names that server or the server is removed. An import with
// servers that differ from the operator's file returns a [ServersError]. An import from [ParseImport] may omit the
// servers.
//
// Import returns a [RejectedError] if it would remove or move an instance of a container with a running job, remove the
// destination of a running job, or change the settings of the servers of a job that has begun. A job that begins during the
// import may still get new settings. Of concurrent imports, the one that started last wins, and the others return
// [ErrImportSuperseded]. To complete an interrupted import, import the same content again.
func (inv *Inventory) Import(ctx context.Context, f *File) (Changes, error) {
	f, err := inv.withOperatorServers(f)
	if err != nil {
		return Changes{}, err
	}
	return inv.runImport(ctx, f, false)
}

// Seed imports the operator's file, including the servers. If the last seed had the same content and no other was interrupted, it
// does nothing and therefore does not undo later imports. Several nodes may seed the same file concurrently. Seed does not call
// [Inventory.SetFile].
func (inv *Inventory) Seed(ctx context.Context, f *File) (Changes, error) {
	return inv.runImport(ctx, f, true)
}

// IsImportUnfinished reports whether an import is in progress or was interrupted.
func (inv *Inventory) IsImportUnfinished(ctx context.Context) (bool, error) {
	unfinished, err := inv.client.HExists(ctx, inv.keys.inventoryImports(), "unfinished").Result()
	return unfinished, redisconn.WrapError("read the state of the last import", err)
}

func (inv *Inventory) runImport(ctx context.Context, f *File, seed bool) (Changes, error) {
	i, err := inv.newImport(f)
	if err != nil {
		return Changes{}, err
	}
	keys := []string{inv.keys.inventoryImports(), inv.keys.inventorySeed()}
	i.number, err = beginScript.Run(ctx, inv.client, keys, i.digest, boolArg(seed)).Int64()
	if err != nil {
		return Changes{}, redisconn.WrapError("start the import of an inventory", err)
	}
	if i.number == 0 {
		return Changes{}, nil
	}
	changes, err := i.run(ctx, seed)
	if seed && errors.Is(err, ErrImportSuperseded) {
		// Another node with the same file completes the import.
		last, e := inv.client.HGet(ctx, inv.keys.inventoryImports(), "digest").Result()
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

	servers    []any   // ID and value of each
	serverIDs  []any   // in the same order
	containers [][]any // ID and value of each, by partition
	instances  [][]any // field and server of each, by partition
}

func (inv *Inventory) newImport(f *File) (*importRun, error) {
	n := inv.keys.Partitions()
	i := &importRun{Inventory: inv, file: f, containers: make([][]any, n), instances: make([][]any, n)}
	var err error
	if i.digest, err = f.contentHash(); err != nil {
		return nil, err
	}
	for _, s := range f.Servers {
		value, err := json.Marshal(newStoredServer(s))
		if err != nil {
			return nil, fmt.Errorf("encode the server %q of the inventory: %w", s.ID, err)
		}
		i.servers, i.serverIDs = append(i.servers, s.ID, value), append(i.serverIDs, s.ID)
	}
	for _, c := range f.Containers {
		value, err := json.Marshal(storedContainer{
			Hub: c.Hub, Account: c.Account, Environment: c.Environment, Stateful: c.Stateful,
		})
		if err != nil {
			return nil, fmt.Errorf("encode the container %q of the inventory: %w", c.ID, err)
		}
		p := inv.keys.Partition(c.Hub)
		i.containers[p] = append(i.containers[p], c.ID, value)
		for _, instance := range c.Instances {
			i.instances[p] = append(i.instances[p], InstanceField(c.ID, instance.ID), instance.Server)
		}
	}
	return i, nil
}

// errMoved reports that a job has moved an instance since the snapshot was read.
var errMoved = &RejectedError{Reason: "jobs moved instances during the import; import the file again"}

// maxChecks limits how often an import is checked because of [errMoved].
const maxChecks = 3

// run checks and applies the import. It starts again if a job has moved an instance since the check.
func (i *importRun) run(ctx context.Context, seed bool) (changes Changes, err error) {
	for range maxChecks {
		if changes, err = i.checkAndApply(ctx, seed); !errors.Is(err, errMoved) {
			break
		}
	}
	return changes, err
}

// checkAndApply first checks whether the import is possible, so normally it is applied completely or not at all. A job that
// starts after the check can still prevent a part of the import. In that case, another import of the same content
// completes it.
func (i *importRun) checkAndApply(ctx context.Context, seed bool) (Changes, error) {
	snapshot, err := i.readSnapshot(ctx)
	if err != nil {
		return Changes{}, err
	}
	if err := errors.Join(i.checkMovedInstances(snapshot), i.checkServersOfJobs(ctx, snapshot)); err != nil {
		return Changes{}, err
	}
	servers := i.serverChanges(snapshot)
	changes, err := i.applyPartitions(ctx, snapshot.moved, false)
	if err != nil {
		return Changes{}, err
	}
	if changes.Servers = servers; changes.Any() {
		keys := []string{i.keys.inventoryImports(), i.keys.servers()}
		if err := i.runGlobalScript(ctx, serversScript, keys, append([]any{i.number, boolArg(seed)}, i.servers...)); err != nil {
			return Changes{}, err
		}
		if changes, err = i.applyPartitions(ctx, snapshot.moved, true); err != nil {
			return Changes{}, err
		}
		changes.Servers = servers
	}
	stored := ""
	if seed {
		stored = i.digest
	}
	keys := []string{i.keys.inventoryImports(), i.keys.servers(), i.keys.inventoryVersion(), i.keys.inventorySeed()}
	return changes, i.runGlobalScript(ctx, finishScript, keys, append([]any{i.number, stored}, i.serverIDs...))
}

func (i *importRun) serverChanges(snapshot *inventorySnapshot) ChangeCount {
	var c ChangeCount
	for _, s := range i.file.Servers {
		old, ok := snapshot.servers[s.ID]
		switch {
		case !ok:
			c.Added++
		case old != newStoredServer(s):
			c.Changed++
		}
	}
	c.Removed = len(snapshot.servers) + c.Added - len(i.file.Servers)
	return c
}

// runGlobalScript runs a script on keys outside of the partitions.
func (i *importRun) runGlobalScript(ctx context.Context, script *redis.Script, keys []string, args []any) error {
	n, err := script.Run(ctx, i.client, keys, args...).Int()
	if err == nil && n == 0 {
		return ErrImportSuperseded
	}
	return redisconn.WrapError("import the servers of an inventory", err)
}

// applyPartitions applies the import to all partitions. If apply is false, it only returns the changes. moved contains the moves that
// were checked. If an import would clear another one, because the file lacks its instance, applyPartitions returns [errMoved].
func (i *importRun) applyPartitions(ctx context.Context, moved map[string]string, apply bool) (Changes, error) {
	var sum Changes
	var busy []string
	for p := range i.keys.Partitions() {
		keys := []string{
			i.keys.containers(p), i.keys.instances(p), i.keys.migratedTo(p), i.keys.activeMigrations(p),
			i.keys.lastImport(p),
		}
		args := append([]any{i.number, boolArg(apply), len(i.serverIDs)}, i.serverIDs...)
		args = append(args, len(moved))
		for field, server := range moved {
			args = append(args, field, server)
		}
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
		return Changes{}, &RejectedError{Instances: busy, Reason: "the file removes or moves instances of " +
			"containers with running jobs (" +
			joinLimited(busy) + "); import it again when the jobs have ended"}
	}
	return sum, nil
}

var errReply = errors.New("unexpected response of Redis")

// add adds the response of a partition's script. It appends the instances that prevent the import to busy.
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
	case len(n) == 1 && n[0] == 2:
		return busy, errMoved
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

// joinLimited joins the first five names and adds the number of further names.
func joinLimited(names []string) string {
	const limit = 5
	if len(names) <= limit {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:limit], ", ") + " and " + strconv.Itoa(len(names)-limit) + " more"
}

func boolArg(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
