package testkit

import (
	"bytes"
	"sync"
)

// Buffer collects what a program or a logger writes. It may be used concurrently.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the text written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
