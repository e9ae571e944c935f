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
	clients   map[string]map[int]*keyHashes // by name and partition
	nextSweep time.Time
}

// keyHashes are the sizes of the two hashes with the keys of a client.
type keyHashes struct {
	newer, older int64
	createdAt    time.Time // of the newer one
}

func newKeyBudget() *keyBudget {
	return &keyBudget{
		maxMemory: func() int64 { return 0 },
		shares:    storage.NewFairShare(minIdempotencyBytes), clients: make(map[string]map[int]*keyHashes),
	}
}

// maxHash returns the size in bytes from which the newer hash of a client in a partition replaces the older one.
func (b *keyBudget) maxHash(client string, partition int) int64 {
	maxBytes := b.maxMemory() / keyMemoryDivisor
	b.mu.Lock()
	defer b.mu.Unlock()
	size := min(b.shares.Limit(client, IdempotencyKeySize, maxBytes)/2, maxIdempotencyBytes)
	hashes := b.clients[client]
	count := int64(len(hashes))
	if hashes[partition] == nil {
		count++
	}
	return max(size/count, minIdempotencyBytes/2)
}

// recordSizes records the size of the newer hash of a client after a key was added. replaced is the size of the older one if the
// script has just replaced it, or -1.
func (b *keyBudget) recordSizes(client string, partition int, newer, replaced int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeExpiredLocked(now)
	hashes := b.clients[client]
	if hashes == nil {
		if len(b.clients) >= maxKeyClients {
			return
		}
		hashes = make(map[int]*keyHashes)
		b.clients[client] = hashes
	}
	h := hashes[partition]
	if h == nil {
		h = &keyHashes{createdAt: now}
		hashes[partition] = h
	}
	before := h.newer + h.older
	h.newer = newer
	if replaced >= 0 {
		h.older, h.createdAt = replaced, now
	}
	b.shares.Add(client, h.newer+h.older-before)
}

// removeExpiredLocked removes the hashes that have expired in Redis. It does nothing if it was called less than IdempotencyTime ago.
func (b *keyBudget) removeExpiredLocked(now time.Time) {
	if now.Before(b.nextSweep) {
		return
	}
	b.nextSweep = now.Add(IdempotencyTime)
	for client, partitions := range b.clients {
		for partition, h := range partitions {
			if now.Sub(h.createdAt) >= 2*IdempotencyTime {
				b.shares.Add(client, -h.newer-h.older)
				delete(partitions, partition)
			}
		}
		if len(partitions) == 0 {
			delete(b.clients, client)
		}
	}
}
