package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// checkEvery bounds how often secret files are looked at.
const checkEvery = time.Second

// secrets holds the keys that sign, and follows the files they come from. Safe for concurrent use.
type secrets struct {
	fixed [][]byte
	files []string
	log   *slog.Logger
	now   func() time.Time

	keys    atomic.Pointer[[][]byte]
	checked atomic.Int64

	mu     sync.Mutex
	states []fileState
}

type fileState struct {
	modified time.Time
	size     int64
	keys     [][]byte
}

func newSecrets(c *Config, log *slog.Logger, now func() time.Time) (*secrets, error) {
	s := &secrets{files: c.SecretFiles, log: log, now: now, states: make([]fileState, len(c.SecretFiles))}
	for _, text := range c.Secrets {
		key, err := parseSecret(text)
		if err != nil {
			return nil, err
		}
		s.fixed = append(s.fixed, key)
	}
	for i, name := range c.SecretFiles {
		state, err := readState(name)
		if err != nil {
			return nil, err
		}
		s.states[i] = state
	}
	s.publish()
	s.checked.Store(now().UnixNano())
	return s, nil
}

// readState notes the file's time before it reads, so that a change in between is seen the next time.
func readState(name string) (fileState, error) {
	var st fileState
	if info, err := os.Stat(name); err == nil {
		st.modified, st.size = info.ModTime(), info.Size()
	}
	keys, err := readSecretFile(name)
	st.keys = keys
	return st, err
}

func (s *secrets) publish() {
	all := append([][]byte(nil), s.fixed...)
	for _, st := range s.states {
		all = append(all, st.keys...)
	}
	s.keys.Store(&all)
}

func (s *secrets) current() [][]byte {
	if len(s.files) > 0 {
		s.refresh()
	}
	return *s.keys.Load()
}

// refresh looks at the files at most once in checkEvery. A file that became bad keeps its last good keys: an editor
// that writes in two steps must not send unsigned requests.
func (s *secrets) refresh() {
	now, last := s.now().UnixNano(), s.checked.Load()
	if now-last < int64(checkEvery) || !s.checked.CompareAndSwap(last, now) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for i, name := range s.files {
		info, err := os.Stat(name)
		if err == nil && info.ModTime().Equal(s.states[i].modified) && info.Size() == s.states[i].size {
			continue
		}
		next, err := readState(name)
		if err != nil {
			if !next.modified.Equal(s.states[i].modified) || next.size != s.states[i].size {
				s.log.Error("secret file changed and is not usable; its last good secrets stay in use",
					"file", name, "error", err)
			}
			next.keys = s.states[i].keys
		} else {
			s.log.Info("secret file read again", "file", name, "secrets", len(next.keys))
		}
		s.states[i], changed = next, true
	}
	if changed {
		s.publish()
	}
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
