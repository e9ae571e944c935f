package ingest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// MaxIdempotencyKey is the maximum length of an idempotency key, in ASCII characters.
const MaxIdempotencyKey = 255

const (
	// keyMemoryDivisor is the part of the memory of Redis, as a divisor, that the newer idempotency keys of all clients share. Each new
	// client gets a smaller part, so 10 clients can take twice the shared part, and 200 clients five times.
	keyMemoryDivisor = 64
	// minKeyBytes is enough for about 80 requests.
	minKeyBytes = 16 << 10
)

// keyClients are the clients that have recently used idempotency keys. It may be used concurrently.
type keyClients struct {
	mu           sync.Mutex
	newer, older map[string]struct{} // a client is in one of them
	rotateAt     time.Time
}

// maxBytes returns the memory in Redis that the newer idempotency keys of a client may take. maxMemory is that of Redis, or 0.
func (c *keyClients) maxBytes(client string, maxMemory int64, now time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !now.Before(c.rotateAt) {
		if now.Sub(c.rotateAt) > eventlog.IdempotencyTime {
			clear(c.newer)
		}
		c.newer, c.older, c.rotateAt = make(map[string]struct{}), c.newer, now.Add(eventlog.IdempotencyTime)
	}
	delete(c.older, client)
	c.newer[client] = struct{}{}
	if maxMemory == 0 {
		return eventlog.MaxIdempotencyBytes
	}
	count := int64(len(c.newer) + len(c.older))
	return min(max(maxMemory/keyMemoryDivisor/(count+1), minKeyBytes), eventlog.MaxIdempotencyBytes)
}

// checkIdempotencyKey returns the problem of an idempotency key, or "".
func checkIdempotencyKey(key string) string {
	if key == "" || len(key) > MaxIdempotencyKey {
		return fmt.Sprintf("must have 1 to %d characters", MaxIdempotencyKey)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "must have visible ASCII characters only"
		}
	}
	return ""
}

// clientOf returns the client whose idempotency keys share a limit: the account, or the key if it has none. It is not the owner:
// otherwise a user without an account could displace the keys of others.
func clientOf(p Publication) string {
	if kindOf(p) == quota.KindKey {
		return "key " + p.KeyName
	}
	return "account " + p.Account
}

// requestDigest returns a hash of the content of a request. The charset does not matter.
func requestDigest(p Publication) string {
	kind, _ := parseBodyFormat(p.ContentType) // Decoding has already checked the format.
	h := sha256.New()
	h.Write([]byte(kind + "\n"))
	h.Write(p.Body)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
