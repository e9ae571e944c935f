package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/egress"
)

// secrets holds the keys that sign, and follows the files they come from. Safe for concurrent use.
type secrets struct {
	fixed []*signingKey
	files []*egress.File[[]*signingKey]
}

// signingKey is one secret, and what HMAC has worked out of it for the next time.
type signingKey struct {
	idle sync.Pool // of hash.Hash, in their first state
}

func newSigningKey(secret []byte) *signingKey {
	k := &signingKey{}
	k.idle.New = func() any { return hmac.New(sha256.New, secret) }
	return k
}

func (k *signingKey) sign(sum []byte, prefix, body []byte) []byte {
	mac, ok := k.idle.Get().(hash.Hash)
	if !ok {
		return nil // it holds nothing else
	}
	mac.Write(prefix)
	mac.Write(body)
	sum = mac.Sum(sum)
	mac.Reset()
	k.idle.Put(mac)
	return sum
}

func signingKeys(secrets [][]byte) []*signingKey {
	keys := make([]*signingKey, len(secrets))
	for i, s := range secrets {
		keys[i] = newSigningKey(s)
	}
	return keys
}

func newSecrets(c *Config, log *slog.Logger, now func() time.Time) (*secrets, error) {
	s := &secrets{}
	for _, text := range c.Secrets {
		key, err := parseSecret(text)
		if err != nil {
			return nil, err
		}
		s.fixed = append(s.fixed, newSigningKey(key))
	}
	parse := func(text []byte) ([]*signingKey, error) {
		secrets, err := parseSecrets(text)
		return signingKeys(secrets), err
	}
	for _, name := range c.SecretFiles {
		file, err := egress.Follow(name, parse, log, now)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, file)
	}
	return s, nil
}

// current returns all keys. The caller must not change them.
func (s *secrets) current() []*signingKey {
	if len(s.files) == 0 {
		return s.fixed
	}
	all := slices.Clone(s.fixed)
	for _, f := range s.files {
		all = append(all, f.Current()...)
	}
	return all
}

// sign returns the value of webhook-signature: one v1 signature for each key, separated by spaces.
func sign(keys []*signingKey, id string, timestamp int64, body []byte) string {
	prefix := make([]byte, 0, len(id)+24)
	prefix = append(append(prefix, id...), '.')
	prefix = append(strconv.AppendInt(prefix, timestamp, 10), '.')
	var out strings.Builder
	out.Grow(len(keys) * (len("v1, ") + base64.StdEncoding.EncodedLen(sha256.Size)))
	var sum [sha256.Size]byte
	var text [44]byte
	for i, key := range keys {
		base64.StdEncoding.Encode(text[:], key.sign(sum[:0], prefix, body))
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString("v1,")
		out.Write(text[:])
	}
	return out.String()
}
