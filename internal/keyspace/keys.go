// Package keyspace builds the names of keys in Redis, and maps hubs to partitions.
//
// The names of a store belong to the keys.go of its package.
package keyspace

import (
	"fmt"
	"strconv"
	"strings"
)

// The limits of the number of partitions.
const (
	MinPartitions = 1
	MaxPartitions = 1024
)

const clusterSlots = 16384

// Space builds the names of keys. Every name begins with the prefix, so several relays can share one Redis. A Space is
// immutable and may be used concurrently.
type Space struct {
	prefix  string
	cluster bool
	tags    []string
}

// New returns a Space for a prefix and a number of partitions between [MinPartitions] and [MaxPartitions]. In a
// cluster, names that scripts use together share a hash tag.
func New(prefix string, partitions int, cluster bool) (Space, error) {
	if prefix == "" {
		return Space{}, fmt.Errorf("redis.prefix is empty: give it a name such as %q", "hubrelay")
	}
	for _, c := range prefix {
		if c == '{' || c == '}' || c <= ' ' || c == 0x7f {
			return Space{}, fmt.Errorf("redis.prefix %q must not contain braces, white space or control characters",
				prefix)
		}
	}
	if partitions < MinPartitions || partitions > MaxPartitions {
		return Space{}, fmt.Errorf("redis.partitions is %d: choose a number from %d to %d",
			partitions, MinPartitions, MaxPartitions)
	}
	return Space{prefix: prefix + ":", cluster: cluster, tags: slotTags(partitions)}, nil
}

// slotTags returns the hash tag of each partition: the smallest number whose slot is in the partition's share of all
// slots. Consecutive numbers would put many partitions on the same server.
func slotTags(n int) []string {
	if n == 1 {
		return []string{"0"}
	}
	tags := make([]string, n)
	for found, candidate := 0, 0; found < n; candidate++ {
		tag := strconv.Itoa(candidate)
		i := int(crc16(tag)%clusterSlots) * n / clusterSlots
		if tags[i] == "" {
			tags[i] = tag
			found++
		}
	}
	return tags
}

// crc16 returns the CRC-16/XMODEM, with which Redis Cluster maps a hash tag to a slot (Redis Cluster specification).
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// Prefix returns the prefix without its colon.
func (k Space) Prefix() string { return strings.TrimSuffix(k.prefix, ":") }

// Partitions returns the number of partitions.
func (k Space) Partitions() int { return len(k.tags) }

// Partition returns the partition of a hub, starting at 0. It must be the same in every version, because a change would
// break the order of a hub.
func (k Space) Partition(hub string) int {
	if len(k.tags) == 1 {
		return 0
	}
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(hub) {
		h = (h ^ uint64(hub[i])) * prime
	}
	// The low bits of FNV are poorly distributed, which the finalizer of murmur3 corrects.
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return int(h % uint64(len(k.tags)))
}

// InPartition returns a name in the slot of a partition.
func (k Space) InPartition(name string, partition int) string {
	return k.prefix + name + ":{" + k.tags[partition] + "}"
}

// OfSink returns a name of a sink. In a cluster, all names of a sink share a slot.
func (k Space) OfSink(name, sink string) string {
	if k.cluster {
		return k.prefix + name + ":{" + sink + "}"
	}
	return k.prefix + name + ":" + sink
}

// Global returns a name that needs no slot in common with others.
func (k Space) Global(name string) string { return k.prefix + name }

// InGroup returns the name of a group, or a name within it. In a cluster, all names of a group share a slot.
func (k Space) InGroup(group, name string) string {
	if k.cluster {
		return k.prefix + "{" + group + "}" + name
	}
	return k.prefix + group + name
}

// Slot returns the slot of a name with a hash tag. A command may use only names with the same slot. Without a cluster,
// it is always 0.
func (k Space) Slot(name string) int {
	if !k.cluster {
		return 0
	}
	_, rest, _ := strings.Cut(name, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return int(crc16(tag) % clusterSlots)
}

// Token is what a token, given as a hash, opens.
func (k Space) Token(hash string) string { return k.Global("token:" + hash) }

// Servers is the hash of all servers of the inventory by their id, as JSON: cluster, settings. What belongs to the
// inventory and to no hub shares a slot with it.
func (k Space) Servers() string { return k.InGroup("inventory", ":servers") }

// InventoryVersion counts the imports that changed the inventory.
func (k Space) InventoryVersion() string { return k.InGroup("inventory", ":version") }

// InventoryImports is the hash of how many imports were begun and what the last of them is.
func (k Space) InventoryImports() string { return k.InGroup("inventory", ":imports") }

// InventorySeed is the digest of the inventory file that a daemon imported last when it started.
func (k Space) InventorySeed() string { return k.InGroup("inventory", ":seed") }

// Containers is the hash of the containers of a partition's hubs by their id, as JSON: hub, account, environment,
// stateful.
func (k Space) Containers(partition int) string {
	return k.InPartition("inventory:containers", partition)
}

// Instances is the hash of the servers that the inventory names for <container>/<instance>.
func (k Space) Instances(partition int) string {
	return k.InPartition("inventory:instances", partition)
}

// LastImport is the number of the last import that came to a partition.
func (k Space) LastImport(partition int) string {
	return k.InPartition("inventory:imported", partition)
}

// MigratedTo is the hash of the servers to which jobs have moved <container>/<instance>; they win over Instances.
func (k Space) MigratedTo(partition int) string { return k.InPartition("moved", partition) }

// ActiveMigrations is the hash of the jobs that move <container>/<instance> now.
func (k Space) ActiveMigrations(partition int) string { return k.InPartition("migrating", partition) }

// Job is the hash of a migration job. It lies in the slot of its hub's partition, as all that follows but Turns.
func (k Space) Job(id string, partition int) string {
	if k.cluster {
		return k.InPartition("job:"+id, partition)
	}
	return k.Global("job:" + id)
}

// Jobs is the stream of a partition's jobs that are not over; its one group is that of the workers.
func (k Space) Jobs(partition int) string { return k.InPartition("jobs", partition) }

// InstanceJobs is the list of the jobs of an instance, the newest first.
func (k Space) InstanceJobs(partition int, instance string) string {
	return k.InPartition("jobs", partition) + ":" + instance
}

// MigrationLeases is the hash of the last lease of each instance that was ever migrated.
func (k Space) MigrationLeases(partition int) string {
	return k.InPartition("migrating:leases", partition)
}

// ServerSlots is the hash of the jobs that wait for their servers or have their turn.
func (k Space) ServerSlots() string { return k.Global("turns") }
