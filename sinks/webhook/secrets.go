package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay/egress"
)

// secrets holds the keys that sign, and follows the files they come from. Safe for concurrent use.
type secrets struct {
	fixed [][]byte
	files []*egress.File[[][]byte]
}

func newSecrets(c *Config, log *slog.Logger, now func() time.Time) (*secrets, error) {
	s := &secrets{}
	for _, text := range c.Secrets {
		key, err := parseSecret(text)
		if err != nil {
			return nil, err
		}
		s.fixed = append(s.fixed, key)
	}
	for _, name := range c.SecretFiles {
		file, err := egress.Follow(name, parseSecrets, log, now)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, file)
	}
	return s, nil
}

// current returns all keys. The caller must not change them.
func (s *secrets) current() [][]byte {
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
func sign(keys [][]byte, id string, timestamp int64, body []byte) string {
	prefix := make([]byte, 0, len(id)+24)
	prefix = append(append(prefix, id...), '.')
	prefix = append(strconv.AppendInt(prefix, timestamp, 10), '.')
	var out strings.Builder
	out.Grow(len(keys) * (len("v1, ") + base64.StdEncoding.EncodedLen(sha256.Size)))
	var sum [sha256.Size]byte
	var text [44]byte
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write(prefix)
		mac.Write(body)
		base64.StdEncoding.Encode(text[:], mac.Sum(sum[:0]))
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString("v1,")
		out.Write(text[:])
	}
	return out.String()
}
