package auth

import "time"

// heldBytes counts the memory in Redis of the tokens that event streams of this node keep alive, by owner. A token counts until it
// expires. heldTokens.mu guards it.
type heldBytes struct {
	byOwner  map[string]int64
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

// addStream counts a stream of a token. It returns false if the tokens of the owner would exceed its part of maxBytes, unless that is
// 0. Each new owner gets a smaller part, so 10 owners can take twice maxBytes, and 200 owners five times.
func (b *heldBytes) addStream(key, owner string, size, maxBytes int64, now time.Time) bool {
	for len(b.expiring) > 0 && !b.expiring[0].at.After(now) {
		b.removeExpired(b.expiring[0].token, now)
		b.expiring = b.expiring[1:]
	}
	c := b.byKey[key]
	if c == nil {
		owners := int64(len(b.byOwner))
		if b.byOwner[owner] == 0 {
			owners++
		}
		if maxBytes > 0 && b.byOwner[owner]+size > maxBytes/(owners+1) {
			return false
		}
		c = &countedToken{key: key, owner: owner, size: size}
		b.byKey[key] = c
		b.byOwner[owner] += size
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
	if b.byOwner[c.owner] -= c.size; b.byOwner[c.owner] == 0 {
		delete(b.byOwner, c.owner)
	}
}
