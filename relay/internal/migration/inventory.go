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
	// ErrNoContainer reports that the hub has no such container. Another hub may have one.
	ErrNoContainer = errors.New("the hub has no such container")
	// ErrNoInstance reports that the container has no such instance.
	ErrNoInstance = errors.New("the container has no such instance")
)

// Inventory contains the servers, containers and instances. It may be used concurrently. Its errors wrap
// [redisconn.ErrUnavailable] if a retry may succeed.
//
// Redis stores the IDs and clusters of the servers. [Inventory.SetFile] provides the settings.
type Inventory struct {
	client   redis.UniversalClient
	keys     keys
	operator atomic.Pointer[operatorFile]
}

// NewInventory returns the inventory in client. The client must not retry commands (MaxRetries -1).
func NewInventory(client redis.UniversalClient, space keyspace.Space) *Inventory {
	v := &Inventory{client: client, keys: keys{space}}
	v.operator.Store(&operatorFile{})
	return v
}

// InstanceField returns the hash field of an instance in Redis. IDs contain no slash.
func InstanceField(container, instance string) string { return container + "/" + instance }

// isValidID reports whether id is valid for a container, an instance or a server. Drivers use such IDs as names of
// directories and Docker containers.
func isValidID(id string) bool {
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

// storedServer and storedContainer are values in Redis. The IDs are the hash fields.
type storedServer struct {
	Cluster string `json:"cluster"`
	// SettingsSHA256 allows an import to detect changed settings, which are not stored.
	SettingsSHA256 string `json:"settings_sha256"`
}

type storedContainer struct {
	Hub         string `json:"hub"`
	Account     string `json:"account,omitempty"`
	Environment string `json:"environment,omitempty"`
	Stateful    bool   `json:"stateful,omitempty"`
}

func newStoredServer(s relay.Server) storedServer {
	sum := sha256.Sum256(s.Settings)
	return storedServer{Cluster: s.Cluster, SettingsSHA256: hex.EncodeToString(sum[:])}
}

func decodeStoredServer(id, value string) (storedServer, error) {
	var s storedServer
	if err := json.Unmarshal([]byte(value), &s); err != nil {
		return s, fmt.Errorf("decode server %q of the inventory: %w", id, err)
	}
	return s, nil
}

func (inv *Inventory) decodeServer(id, value string) (relay.Server, error) {
	s, err := decodeStoredServer(id, value)
	return relay.Server{ID: id, Cluster: s.Cluster, Settings: inv.settings(id)}, err
}

func decodeContainer(id, value string) (Container, error) {
	var c storedContainer
	if err := json.Unmarshal([]byte(value), &c); err != nil {
		return Container{}, fmt.Errorf("decode container %q of the inventory: %w", id, err)
	}
	return Container{ID: id, Hub: c.Hub, Account: c.Account, Environment: c.Environment, Stateful: c.Stateful}, nil
}

// InstanceLookup is the result of [Inventory.Find].
type InstanceLookup struct {
	Container Container
	// Source is the current server. Its Cluster is empty if the server was removed from the inventory.
	Source relay.Server
	// Destination has no ID if the inventory has no such server.
	Destination relay.Server
}

// Find finds an instance of a hub's container and the destination server. It returns [ErrNoContainer], or
// [ErrNoInstance] together with the container.
//
// The result may change at any time. A transaction that depends on it must compare the current server again.
func (inv *Inventory) Find(ctx context.Context, hub, container, instance, destination string) (InstanceLookup, error) {
	if !isValidID(container) {
		return InstanceLookup{}, ErrNoContainer
	}
	p, field := inv.keys.Partition(hub), InstanceField(container, instance)
	// Read migratedTo before instances, because an import clears the first and updates the second in the same script.
	values, err := inv.readFields(ctx, [][2]string{
		{inv.keys.migratedTo(p), field}, {inv.keys.instances(p), field}, {
			inv.keys.containers(p), container,
		}, {inv.keys.servers(), destination},
	})
	if err != nil {
		return InstanceLookup{}, err
	}
	moved, server, value, to := values[0], values[1], values[2], values[3]
	if value == "" {
		return InstanceLookup{}, ErrNoContainer
	}
	var f InstanceLookup
	if f.Container, err = decodeContainer(container, value); err != nil {
		return InstanceLookup{}, err
	}
	if f.Container.Hub != hub {
		return InstanceLookup{}, ErrNoContainer
	}
	if server == "" || !isValidID(instance) {
		return f, ErrNoInstance
	}
	if to != "" {
		if f.Destination, err = inv.decodeServer(destination, to); err != nil {
			return InstanceLookup{}, err
		}
	}
	f.Source.ID = cmp.Or(moved, server)
	if f.Source.ID == f.Destination.ID {
		f.Source = f.Destination
		return f, nil
	}
	values, err = inv.readFields(ctx, [][2]string{{inv.keys.servers(), f.Source.ID}})
	if err != nil || values[0] == "" {
		return f, err
	}
	f.Source, err = inv.decodeServer(f.Source.ID, values[0])
	return f, err
}

// readFields reads hash fields in one round trip. Each request consists of a key and a field. Missing values are empty.
func (inv *Inventory) readFields(ctx context.Context, requests [][2]string) ([]string, error) {
	commands := make([]*redis.StringCmd, len(requests))
	_, _ = inv.client.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each command has its own error
		for i, f := range requests {
			commands[i] = pipe.HGet(ctx, f[0], f[1])
		}
		return nil
	})
	values := make([]string, len(requests))
	for i, c := range commands {
		var err error
		if values[i], err = c.Result(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, redisconn.WrapError("read the inventory", err)
		}
	}
	return values, nil
}

// Version returns a number that changes with each import that changed something, on any node, and with each
// [Inventory.SetFile] on this node.
func (inv *Inventory) Version(ctx context.Context) (int64, error) {
	n, err := inv.importCount(ctx)
	return n + inv.operator.Load().generation, err
}

// importCount returns the number of imports that changed something.
func (inv *Inventory) importCount(ctx context.Context) (int64, error) {
	n, err := inv.client.Get(ctx, inv.keys.inventoryVersion()).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, redisconn.WrapError("read the version of the inventory", err)
	}
	return n, nil
}
