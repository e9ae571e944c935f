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
	// minIdempotencyBytes is the memory that each client may use in any case. It is enough for about 200 requests.
	minIdempotencyBytes = 32 << 10
	// keyMemoryDivisor is the part of the memory of Redis, as a divisor, that the idempotency keys of all clients of a node share.
	keyMemoryDivisor = 16
	// maxKeyClients is the maximum number of clients that are counted. Further ones may use minIdempotencyBytes.
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

// keyHashes are the sizes of the two hashes with the keys of a client. The script replaces and Redis expires them at about the same
// times as keyBudget.
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

// addKey counts a key of a client, and returns the size from which the hash that stores it is replaced by a new one.
func (b *keyBudget) addKey(client string, partition int, size int64, now time.Time) (maxHash int64) {
	maxBytes := b.maxMemory() / keyMemoryDivisor
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeExpiredLocked(now)
	partitions := b.clients[client]
	if partitions == nil {
		if len(b.clients) >= maxKeyClients {
			return minIdempotencyBytes / 2
		}
		partitions = make(map[int]*keyHashes)
		b.clients[client] = partitions
	}
	h := partitions[partition]
	if h == nil {
		h = &keyHashes{createdAt: now}
		partitions[partition] = h
	}
	maxHash = maxIdempotencyBytes
	if limit := b.shares.Limit(client, size, maxBytes); limit >= 0 {
		maxHash = min(limit/2, maxHash)
	}
	maxHash /= int64(len(partitions))
	if h.newer >= maxHash || now.Sub(h.createdAt) >= IdempotencyTime {
		b.shares.Add(client, -h.older)
		h.newer, h.older, h.createdAt = 0, h.newer, now
	}
	h.newer += size
	b.shares.Add(client, size)
	return maxHash
}

// removeExpiredLocked forgets hashes that have expired. It searches for them once in a while.
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
