package eventlog

import (
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

const (
	// maxIdempotencyBytes is the maximum memory in Redis of the newer idempotency keys of a client in all partitions, and of its older
	// ones again. It is enough for about 50,000 requests.
	maxIdempotencyBytes = 8 << 20
	// minIdempotencyBytes is the memory that each client may use in each partition in any case. It is enough for about 200 requests.
	minIdempotencyBytes = 32 << 10
	// keyMemoryDivisor is the part of the memory of Redis, as a divisor, that the idempotency keys of all clients of a node share.
	keyMemoryDivisor = 16
	// maxKeyClients is the maximum number of clients that are counted.
	maxKeyClients = 100_000
)

// keyBudget limits the memory in Redis of the idempotency keys that this node stores. It may be used concurrently.
type keyBudget struct {
	maxMemory func() int64 // the memory limit of Redis in bytes, or 0

	mu        sync.Mutex
	shares    *storage.FairShare
	clients   map[string]*clientKeys
	nextSweep time.Time
}

// clientKeys are the sizes of the keys of a client.
type clientKeys struct {
	partitions map[int]*keyHashes
	large      int64 // number of partitions with more than minIdempotencyBytes
}

// keyHashes are the sizes of the two hashes with the keys of a client in a partition.
type keyHashes struct {
	newer, older int64
	createdAt    time.Time // of the newer one
}

// totalBytes returns the size of both hashes, 0 for nil.
func (h *keyHashes) totalBytes() int64 {
	if h == nil {
		return 0
	}
	return h.newer + h.older
}

func (h *keyHashes) isLarge() bool { return h.totalBytes() > minIdempotencyBytes }

// newKeyBudget returns a budget without keys. maxMemory may be nil.
func newKeyBudget(maxMemory func() int64) *keyBudget {
	if maxMemory == nil {
		maxMemory = func() int64 { return 0 }
	}
	return &keyBudget{
		maxMemory: maxMemory, shares: storage.NewFairShare(minIdempotencyBytes), clients: make(map[string]*clientKeys),
	}
}

// maxHash returns the size in bytes from which the newer hash of a client in a partition replaces the older one. Large partitions
// divide the limit of the client equally. Those that were filled first keep what they have, so all together may exceed the limit, up
// to twice.
func (b *keyBudget) maxHash(client string, partition int) int64 {
	maxBytes := b.maxMemory() / keyMemoryDivisor
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := min(b.shares.Limit(client, IdempotencyKeySize, maxBytes), 2*maxIdempotencyBytes)
	size := limit
	if keys := b.clients[client]; keys != nil {
		h, parts := keys.partitions[partition], keys.large
		if !h.isLarge() {
			parts++
		}
		size = min(limit/parts, 2*limit-b.shares.Bytes(client)+h.totalBytes())
	}
	return max(size, minIdempotencyBytes) / 2
}

// recordSizes records the size of the newer hash of a client after a key was added. replaced is the size of the older one if the
// script has just replaced it, or -1.
func (b *keyBudget) recordSizes(client string, partition int, newer, replaced int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeExpiredLocked(now)
	keys := b.clients[client]
	if keys == nil {
		if len(b.clients) >= maxKeyClients {
			return
		}
		keys = &clientKeys{partitions: make(map[int]*keyHashes)}
		b.clients[client] = keys
	}
	former := keyHashes{createdAt: now}
	if h := keys.partitions[partition]; h != nil {
		former = *h
	}
	h := keyHashes{newer, former.older, former.createdAt}
	switch {
	case replaced >= 0:
		h.older, h.createdAt = replaced, now
	case newer < former.newer && now.Sub(former.createdAt) > 2*IdempotencyTime-time.Minute: // both have expired
		h.older, h.createdAt = 0, now
	}
	keys.partitions[partition] = &h
	b.countChangeLocked(client, keys, &former, &h)
}

// countChangeLocked counts a change of the hashes of a client in a partition.
func (b *keyBudget) countChangeLocked(client string, keys *clientKeys, before, after *keyHashes) {
	b.shares.Add(client, after.totalBytes()-before.totalBytes())
	if before.isLarge() {
		keys.large--
	}
	if after.isLarge() {
		keys.large++
	}
}

// removeExpiredLocked removes the hashes that have expired in Redis. It does nothing if it was called less than IdempotencyTime ago.
func (b *keyBudget) removeExpiredLocked(now time.Time) {
	if now.Before(b.nextSweep) {
		return
	}
	b.nextSweep = now.Add(IdempotencyTime)
	for client, keys := range b.clients {
		for partition, h := range keys.partitions {
			if now.Sub(h.createdAt) >= 2*IdempotencyTime {
				b.countChangeLocked(client, keys, h, &keyHashes{})
				delete(keys.partitions, partition)
			}
		}
		if len(keys.partitions) == 0 {
			delete(b.clients, client)
		}
	}
}
