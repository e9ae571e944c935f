package exec

import (
	"slices"
	"strings"
	"sync"
)

const (
	keptAnswer = 1 << 10
	redacted   = "(redacted)"
	// shortestHidden is the minimum length of a value to redact. Otherwise the value "1" would redact every 1.
	shortestHidden = 4
)

// outputHead discards the output of a command except the beginning.
type outputHead struct {
	secrets []string

	mu   sync.Mutex
	room int
	data []byte
}

// newOutputHead keeps more output than String returns, to recognize a secret at the end of that part.
func newOutputHead(hidden []string) *outputHead {
	room := keptAnswer
	for _, h := range hidden {
		room = max(room, keptAnswer+len(h))
	}
	hidden = slices.Clone(hidden)
	// longest first, because a secret may contain another
	slices.SortFunc(hidden, func(a, b string) int { return len(b) - len(a) })
	return &outputHead{secrets: hidden, room: room}
}

// Write never fails, so output cannot stop a command.
func (t *outputHead) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p[:min(len(p), t.room-len(t.data))]...)
	return len(p), nil
}

// String returns at most 1 KiB of valid UTF-8 without secrets.
func (t *outputHead) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ToValidUTF8(string(t.data), "")
	for _, h := range t.secrets {
		text = strings.ReplaceAll(text, h, redacted)
	}
	if len(t.data) == t.room {
		text = t.redactTail(text)
	}
	if len(text) > keptAnswer {
		text = strings.ToValidUTF8(text[:keptAnswer], "")
	}
	return text
}

// redactTail removes the beginning of a secret from the end of a truncated text.
func (t *outputHead) redactTail(text string) string {
	for _, h := range t.secrets {
		for n := len(h) - 1; n >= shortestHidden; n-- {
			if strings.HasSuffix(text, h[:n]) {
				return text[:len(text)-n] + redacted
			}
		}
	}
	return text
}
