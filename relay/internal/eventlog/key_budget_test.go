package eventlog

import (
	"fmt"
	"testing"
	"time"
)

// A client may use its part of the memory wherever its hubs are. Partitions with few keys take nothing from others, and one that
// fills one partition after the other gets little more than its part.
func TestKeyBudget_PartitionsShareMemory(t *testing.T) {
	t.Parallel()
	b, now := newKeyBudget(func() int64 { return 1 << 30 }), time.Now()
	const most = maxIdempotencyBytes
	for partition := range 8 {
		b.recordSizes("a", partition, IdempotencyKeySize, -1, now)
	}
	if got := b.maxHash("a", 0); got != most {
		t.Errorf("with a key in each partition: got %d bytes for a hash, want %d", got, most)
	}
	for _, partitions := range []int{8, 64} {
		b := newKeyBudget(func() int64 { return 1 << 30 })
		for partition := range partitions {
			size := b.maxHash("a", partition)
			b.recordSizes("a", partition, size, -1, now)
			b.recordSizes("a", partition, b.maxHash("a", partition), size, now)
		}
		minimum := int64(partitions) * minIdempotencyBytes
		if got := b.shares.Bytes("a"); got < 3*most || got > 4*most+minimum {
			t.Errorf("%d partitions, one after the other: got %d bytes, want at most twice the part of a client, %d", partitions, got, 4*most)
		}
	}
	for partition := range 8 {
		b.recordSizes("a", partition, most/8, most/8, now)
	}
	if got := b.maxHash("a", 0); got != most/8 {
		t.Errorf("with equal parts: got %d bytes for a hash, want %d", got, most/8)
	}
	before := b.shares.Bytes("a")
	b.recordSizes("a", 0, most/8-IdempotencyKeySize, -1, now) // the reply of an earlier request
	if got := b.shares.Bytes("a"); got != before-IdempotencyKeySize {
		t.Errorf("after a late reply: the budget counts %d bytes, want %d", got, before-IdempotencyKeySize)
	}
	later := now.Add(2 * IdempotencyTime)
	b.recordSizes("a", 0, IdempotencyKeySize, -1, later) // all hashes have expired in Redis
	if got := b.maxHash("a", 0); got != most {
		t.Errorf("after twenty minutes: got %d bytes for a hash, want %d", got, most)
	}
	b.recordSizes("a", 0, most, -1, later)
	b.recordSizes("b", 0, IdempotencyKeySize, -1, later.Add(IdempotencyTime))
	if got := b.shares.Bytes("a"); got != most {
		t.Errorf("the budget counts %d bytes of a hash that has not expired, want %d", got, most)
	}
}

// Many clients must not fill a small Redis with their idempotency keys, nor leave a quiet client too few.
func TestKeyBudget_ClientsShareMemory(t *testing.T) {
	t.Parallel()
	const maxMemory = 64 << 20
	if got := newKeyBudget(nil).maxHash("a", 0); got != maxIdempotencyBytes {
		t.Errorf("without a limit: got %d bytes", got)
	}
	b, now := newKeyBudget(func() int64 { return maxMemory }), time.Now()
	// flood stores keys like the script until the hash was replaced twice.
	flood := func(client string, partition int) (size int64) {
		newer := int64(0)
		for range 2 {
			for size = b.maxHash(client, partition); newer < size; size = b.maxHash(client, partition) {
				newer += IdempotencyKeySize
				b.recordSizes(client, partition, newer, -1, now)
			}
			b.recordSizes(client, partition, IdempotencyKeySize, newer, now)
			newer = IdempotencyKeySize
		}
		return size
	}
	const most = maxMemory / keyMemoryDivisor / 4
	if got := flood("a", 0); got != most {
		t.Errorf("a single client: got %d bytes for a hash, want %d", got, most)
	}
	if got := b.maxHash("a", 1); got != most/2 {
		t.Errorf("its second partition: got %d bytes for a hash, want an equal part, %d", got, most/2)
	}
	for i := range 100 {
		b.recordSizes(fmt.Sprint("one key ", i), 0, IdempotencyKeySize, -1, now)
	}
	for i := range 20 {
		flood(fmt.Sprint("flood ", i), 0)
	}
	for partition := range 200 {
		if got := b.maxHash("quiet", partition); got < minIdempotencyBytes/2 || got > most/5 {
			t.Errorf("a quiet client: got %d bytes for a hash, want a smaller part, and at least %d", got, minIdempotencyBytes/2)
		}
		b.recordSizes("quiet", partition, IdempotencyKeySize, -1, now)
	}
	total := int64(0)
	for client := range b.clients {
		total += b.shares.Bytes(client)
	}
	if total > 3*maxMemory/keyMemoryDivisor {
		t.Errorf("all keys take %d bytes", total)
	}
	for range 3 {
		now = now.Add(IdempotencyTime)
		b.recordSizes("later", 0, IdempotencyKeySize, -1, now)
	}
	if got := b.maxHash("quiet", 0); got != most || len(b.clients) != 1 {
		t.Errorf("after thirty minutes: got %d bytes and %d clients", got, len(b.clients))
	}
}
