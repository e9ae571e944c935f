package exec

import (
	"slices"
	"strings"
	"sync"
)

const (
	keptAnswer = 1 << 10
	redacted   = "(redacted)"
	// shortestHidden keeps a value like "1" from blotting out every 1.
	shortestHidden = 4
)

// tail takes all that a command says and keeps the beginning.
type tail struct {
	hidden []string

	mu   sync.Mutex
	room int
	kept []byte
}

// newTail keeps more than is shown, so that a secret is recognised that begins in what is shown.
func newTail(hidden []string) *tail {
	room := keptAnswer
	for _, h := range hidden {
		room = max(room, keptAnswer+len(h))
	}
	hidden = slices.Clone(hidden)
	slices.SortFunc(hidden, func(a, b string) int { return len(b) - len(a) }) // a short one must not break up a long one
	return &tail{hidden: hidden, room: room}
}

// Write never fails, so that a command is not stopped by what it says.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[:min(len(p), t.room-len(t.kept))]...)
	return len(p), nil
}

// String is what is shown: at most 1 KiB, valid UTF-8, without secrets.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ToValidUTF8(string(t.kept), "")
	for _, h := range t.hidden {
		text = strings.ReplaceAll(text, h, redacted)
	}
	if len(t.kept) == t.room {
		text = t.withoutBeginning(text)
	}
	if len(text) > keptAnswer {
		text = strings.ToValidUTF8(text[:keptAnswer], "")
	}
	return text
}

// withoutBeginning takes the beginning of a secret off the end of a text that was cut there.
func (t *tail) withoutBeginning(text string) string {
	for _, h := range t.hidden {
		for n := len(h) - 1; n >= shortestHidden; n-- {
			if strings.HasSuffix(text, h[:n]) {
				return text[:len(text)-n] + redacted
			}
		}
	}
	return text
}
