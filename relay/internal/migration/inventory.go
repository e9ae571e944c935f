package migration

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Errors of [Inventory.Find].
var (
	// ErrNoContainer says that the hub has no such container; another hub may have one.
	ErrNoContainer = errors.New("the hub has no such container")
	// ErrNoInstance says that the container has no such instance.
	ErrNoInstance = errors.New("the container has no such instance")
)

// Inventory is which servers, containers and instances there are. It may be used concurrently. Its errors are
// [redisconn.ErrUnavailable] where another moment may mend them.
//
// Redis has the servers' IDs and clusters; their settings are those of [Inventory.SetFile].
type Inventory struct {
	client   redis.UniversalClient
	keys     keyspace.Space
	operator atomic.Pointer[operatorFile]
}

// NewInventory returns the inventory in client, which must not repeat commands by itself (MaxRetries -1).
func NewInventory(client redis.UniversalClient, keys keyspace.Space) *Inventory {
	v := &Inventory{client: client, keys: keys}
	v.operator.Store(&operatorFile{})
	return v
}

// InstanceField names an instance in the hashes of Redis. Ids hold no slash.
func InstanceField(container, instance string) string { return container + "/" + instance }

// validID tells whether a container, an instance or a server may be called so: folders and containers are.
func validID(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return 0 < len(id) && len(id) <= maxID
}

const maxID = 128

// storedServer and storedContainer are the values in Redis; the ids are the fields.
type storedServer struct {
	Cluster string `json:"cluster"`
	// SettingsSHA256 tells an import whether the settings, which are not stored, have changed.
	SettingsSHA256 string `json:"settings_sha256"`
}

type storedContainer struct {
	Hub         string `json:"hub"`
	Account     string `json:"account,omitempty"`
	Environment string `json:"environment,omitempty"`
	Stateful    bool   `json:"stateful,omitempty"`
}

func storeServer(s relay.Server) storedServer {
	sum := sha256.Sum256(s.Settings)
	return storedServer{Cluster: s.Cluster, SettingsSHA256: hex.EncodeToString(sum[:])}
}

func readServer(id, value string) (storedServer, error) {
	var s storedServer
	if err := json.Unmarshal([]byte(value), &s); err != nil {
		return s, fmt.Errorf("the server %q of the inventory cannot be read: %w", id, err)
	}
	return s, nil
}

func (v *Inventory) serverOf(id, value string) (relay.Server, error) {
	s, err := readServer(id, value)
	return relay.Server{ID: id, Cluster: s.Cluster, Settings: v.settings(id)}, err
}

func containerOf(id, value string) (Container, error) {
	var c storedContainer
	if err := json.Unmarshal([]byte(value), &c); err != nil {
		return Container{}, fmt.Errorf("the container %q of the inventory cannot be read: %w", id, err)
	}
	return Container{ID: id, Hub: c.Hub, Account: c.Account, Environment: c.Environment, Stateful: c.Stateful}, nil
}

// InstanceLookup is what the inventory knows of an instance and of where it is to go.
type InstanceLookup struct {
	Container Container
	// Source is where the instance is now. It has no cluster where that server is not in the inventory any more.
	Source relay.Server
	// Destination has no id where the inventory has no such server.
	Destination relay.Server
}

// Find looks for an instance of a hub's container and for the server that it is to be moved to. It returns
// [ErrNoContainer] or, with the container, [ErrNoInstance] where there is none.
//
// What it found may be changed at any time: who acts on it compares where the instance is once more, in the transaction.
func (v *Inventory) Find(ctx context.Context, hub, container, instance, destination string) (InstanceLookup, error) {
	if !validID(container) {
		return InstanceLookup{}, ErrNoContainer
	}
	p, field := v.keys.Partition(hub), InstanceField(container, instance)
	// An import that forgets where a job has moved it makes the file say so at the same time: moved goes first.
	values, err := v.readFields(ctx, [][2]string{
		{v.keys.MigratedTo(p), field}, {v.keys.Instances(p), field}, {v.keys.Containers(p), container}, {v.keys.Servers(), destination},
	})
	if err != nil {
		return InstanceLookup{}, err
	}
	moved, placed, value, to := values[0], values[1], values[2], values[3]
	if value == "" {
		return InstanceLookup{}, ErrNoContainer
	}
	var f InstanceLookup
	if f.Container, err = containerOf(container, value); err != nil {
		return InstanceLookup{}, err
	}
	if f.Container.Hub != hub {
		return InstanceLookup{}, ErrNoContainer
	}
	if placed == "" || !validID(instance) {
		return f, ErrNoInstance
	}
	if to != "" {
		if f.Destination, err = v.serverOf(destination, to); err != nil {
			return InstanceLookup{}, err
		}
	}
	f.Source.ID = cmp.Or(moved, placed)
	if f.Source.ID == f.Destination.ID {
		f.Source = f.Destination
		return f, nil
	}
	values, err = v.readFields(ctx, [][2]string{{v.keys.Servers(), f.Source.ID}})
	if err != nil || values[0] == "" {
		return f, err
	}
	f.Source, err = v.serverOf(f.Source.ID, values[0])
	return f, err
}

// readFields reads fields of hashes, each given with its key, in this order and in one round trip. What is missing is empty.
func (v *Inventory) readFields(ctx context.Context, of [][2]string) ([]string, error) {
	commands := make([]*redis.StringCmd, len(of))
	_, _ = v.client.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each command has its error
		for i, f := range of {
			commands[i] = pipe.HGet(ctx, f[0], f[1])
		}
		return nil
	})
	values := make([]string, len(of))
	for i, c := range commands {
		var err error
		if values[i], err = c.Result(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, redisconn.WrapError("look into the inventory", err)
		}
	}
	return values, nil
}

// Version changes with each import that changed something, on any node, and with each [Inventory.SetFile] here.
func (v *Inventory) Version(ctx context.Context) (int64, error) {
	n, err := v.importCount(ctx)
	return n + v.operator.Load().generation, err
}

// importCount counts the imports that changed something.
func (v *Inventory) importCount(ctx context.Context) (int64, error) {
	n, err := v.client.Get(ctx, v.keys.InventoryVersion()).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, redisconn.WrapError("read the version of the inventory", err)
	}
	return n, nil
}
