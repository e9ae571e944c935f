package eventlog

import (
	"fmt"
	"testing"
	"time"
)

// Many clients must not fill a small Redis with their idempotency keys, nor leave a quiet client too few.
func TestKeyBudget_ClientsShareMemory(t *testing.T) {
	t.Parallel()
	const maxMemory = 64 << 20
	b, now := newKeyBudget(), time.Now()
	if got := b.addKey("a", 0, IdempotencyKeySize, now); got != maxIdempotencyBytes {
		t.Errorf("without a limit: got %d bytes", got)
	}
	b.maxMemory = func() int64 { return maxMemory }
	flood := func(client string, partition int) (maxHash int64) {
		for range 2 * maxMemory / keyMemoryDivisor / IdempotencyKeySize {
			maxHash = b.addKey(client, partition, IdempotencyKeySize, now)
		}
		return maxHash
	}
	const most = maxMemory / keyMemoryDivisor / 4
	if got := flood("a", 0); got != most {
		t.Errorf("a single client: got %d bytes for a hash, want %d", got, most)
	}
	if got := flood("a", 1); got != most/2 {
		t.Errorf("its second partition: got %d bytes for a hash, want %d", got, most/2)
	}
	for i := range 100 {
		b.addKey(fmt.Sprint("one key ", i), 0, IdempotencyKeySize, now)
	}
	for i := range 20 {
		flood(fmt.Sprint("flood ", i), 0)
	}
	if got := b.addKey("quiet", 3, IdempotencyKeySize, now); got < minIdempotencyBytes/2 || got > most/10 {
		t.Errorf("a quiet client: got %d bytes for a hash, want a smaller part, and at least %d", got, minIdempotencyBytes/2)
	}
	total := int64(0)
	for client := range b.clients {
		total += b.shares.Bytes(client)
	}
	if total > 3*maxMemory/keyMemoryDivisor {
		t.Errorf("all keys take %d bytes", total)
	}
	now = now.Add(IdempotencyTime)
	if got := b.addKey("quiet", 3, IdempotencyKeySize, now); got > most/10 {
		t.Errorf("after ten minutes: got %d bytes, although older keys are kept", got)
	}
	now = now.Add(2 * IdempotencyTime)
	if got := b.addKey("quiet", 3, IdempotencyKeySize, now); got != most || len(b.clients) != 1 {
		t.Errorf("after thirty minutes: got %d bytes and %d clients", got, len(b.clients))
	}
}
