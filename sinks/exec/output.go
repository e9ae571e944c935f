package exec

import (
	"sync"

	"github.com/hubrelay/hubrelay/internal/redact"
)

const keptOutput = 1 << 10

// outputHead discards the output of a command except the beginning.
type outputHead struct {
	secrets redact.Secrets

	mu   sync.Mutex
	room int
	data []byte
}

// newOutputHead keeps more output than String returns, to recognize a secret at the end of that part.
func newOutputHead(secrets redact.Secrets) *outputHead {
	return &outputHead{secrets: secrets, room: keptOutput + secrets.MaxLength()}
}

// Write never fails, so output cannot stop a command.
func (o *outputHead) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, p[:min(len(p), o.room-len(o.data))]...)
	return len(p), nil
}

// String returns at most 1 KiB of valid UTF-8 without secrets.
func (o *outputHead) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.secrets.Shorten(string(o.data), len(o.data) == o.room, keptOutput)
}
