package auth

import (
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// minHeldBytes is the memory that each owner may have in any case. It is enough for ten usual tokens, or for one with long topics.
const minHeldBytes = 4 << 10

// heldBytes counts the memory in Redis of the tokens that event streams of this node keep alive, by owner. A token counts until it
// expires. heldTokens.mu guards it.
type heldBytes struct {
	byOwner  *storage.FairShare
	byKey    map[string]*countedToken
	expiring []expiringToken // in the order of their times
}

// expiringToken is a token whose last stream had ended, and the time at which it expires unless another stream was opened.
type expiringToken struct {
	token *countedToken
	at    time.Time
}

// countedToken is a token in heldBytes.
type countedToken struct {
	key, owner string
	size       int64
	streams    int
	expiresAt  time.Time // set when the last stream ends
}

func newHeldBytes() heldBytes {
	return heldBytes{byOwner: storage.NewFairShare(minHeldBytes), byKey: make(map[string]*countedToken)}
}

// addStream counts a stream of a token. It returns false if the tokens of the owner would exceed its part of maxBytes, unless that is 0.
func (b *heldBytes) addStream(key, owner string, size, maxBytes int64, now time.Time) bool {
	for len(b.expiring) > 0 && !b.expiring[0].at.After(now) {
		b.removeExpired(b.expiring[0].token, now)
		b.expiring = b.expiring[1:]
	}
	c := b.byKey[key]
	if c == nil {
		if b.byOwner.Bytes(owner)+size > b.byOwner.Limit(owner, size, maxBytes) {
			return false
		}
		c = &countedToken{key: key, owner: owner, size: size}
		b.byKey[key] = c
		b.byOwner.Add(owner, size)
	}
	c.streams++
	return true
}

// endStream ends a stream of a token that expires at a time.
func (b *heldBytes) endStream(key string, expiresAt, now time.Time) {
	c := b.byKey[key]
	if c.streams--; expiresAt.After(c.expiresAt) {
		c.expiresAt = expiresAt
	}
	if c.streams == 0 && c.expiresAt.After(now) {
		b.expiring = append(b.expiring, expiringToken{c, c.expiresAt})
	}
	b.removeExpired(c, now)
}

func (b *heldBytes) removeExpired(c *countedToken, now time.Time) {
	if c.streams > 0 || c.expiresAt.After(now) || b.byKey[c.key] != c {
		return
	}
	delete(b.byKey, c.key)
	b.byOwner.Add(c.owner, -c.size)
}
