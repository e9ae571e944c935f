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

// Space builds the names of keys. Every name starts with the prefix, so several relays can share one Redis. A Space is
// immutable and safe for concurrent use.
type Space struct {
	prefix  string
	cluster bool
	tags    []string
}

// New returns a Space for a prefix and a number of partitions between [MinPartitions] and [MaxPartitions]. In a
// cluster, names that scripts use together share a hash tag.
func New(prefix string, partitions int, cluster bool) (Space, error) {
	if prefix == "" {
		return Space{}, fmt.Errorf("redis.prefix is empty: set it to a name such as %q", "hubrelay")
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
func (s Space) Prefix() string { return strings.TrimSuffix(s.prefix, ":") }

// Partitions returns the number of partitions.
func (s Space) Partitions() int { return len(s.tags) }

// Partition returns the partition of a hub, starting at 0. It must be the same in every version, because a change would
// break the order of a hub.
func (s Space) Partition(hub string) int {
	if len(s.tags) == 1 {
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
	return int(h % uint64(len(s.tags)))
}

// InPartition returns a name in the slot of a partition.
func (s Space) InPartition(name string, partition int) string {
	return s.prefix + name + ":{" + s.tags[partition] + "}"
}

// InPartitionSlot returns a name that is in the slot of a partition in a cluster, and the plain name without one.
func (s Space) InPartitionSlot(name string, partition int) string {
	if s.cluster {
		return s.InPartition(name, partition)
	}
	return s.Global(name)
}

// OfSink returns a name of a sink. In a cluster, all names of a sink share a slot.
func (s Space) OfSink(name, sink string) string {
	if s.cluster {
		return s.prefix + name + ":{" + sink + "}"
	}
	return s.prefix + name + ":" + sink
}

// Global returns a name that does not need to share a slot with other names.
func (s Space) Global(name string) string { return s.prefix + name }

// InGroup returns the name of a group, or a name within it. In a cluster, all names of a group share a slot.
func (s Space) InGroup(group, name string) string {
	if s.cluster {
		return s.prefix + "{" + group + "}" + name
	}
	return s.prefix + group + name
}

// Slot returns the slot of a name with a hash tag. A command may use only names with the same slot. Without a cluster,
// it is always 0.
func (s Space) Slot(name string) int {
	if !s.cluster {
		return 0
	}
	_, rest, _ := strings.Cut(name, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return int(crc16(tag) % clusterSlots)
}

// Token returns the key of the grant of a token with the given hash.
func (s Space) Token(hash string) string { return s.Global("token:" + hash) }

// TokenChanges returns the Pub/Sub channel that announces that a token has a new stream, or no stream anymore.
func (s Space) TokenChanges() string { return s.Global("tokenchanges") }
