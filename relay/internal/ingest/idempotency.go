package ingest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

// MaxIdempotencyKey is the maximum length of an idempotency key, in ASCII characters.
const MaxIdempotencyKey = 255

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
